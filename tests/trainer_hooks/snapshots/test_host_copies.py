import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from holdfast_hooks.snapshots import host_copies
from holdfast_hooks.snapshots.host_copies import HostCopies, end_copy_threads

ELEMENTS = 50_001


def copied(sources: list[torch.Tensor]) -> list[torch.Tensor]:
    places = [torch.empty_like(source) for source in sources]
    copy(places, sources)
    return places


def copy(places: list[torch.Tensor], sources: list[torch.Tensor]) -> int:
    """Copy and return the number of bytes that were unchanged."""
    with HostCopies() as copies:
        for place, source in zip(places, sources, strict=True):
            copies.add(place.data_ptr(), source.data_ptr(), source.nbytes)
    return copies.unchanged_bytes


@pytest.fixture(autouse=True)
def _number_of_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_all_sizes_are_copied_in_one_go(threads: int) -> None:
    torch.set_num_threads(threads)
    batch = host_copies._BATCH_BYTES // 4
    sources = [torch.randn(size) for size in (1, 7, batch - 3, 1, 3 * batch + 1, 5, batch, 2)]
    assert all(map(torch.equal, copied(sources), sources))


@pytest.mark.parametrize("index", [0, 1, 7_000, 25_000, 33_333, ELEMENTS - 1])
def test_one_changed_element_is_found_wherever_it_is(index: int) -> None:
    source = torch.rand(ELEMENTS)
    place = source.clone()
    assert copy([place], [source]) == source.nbytes
    source[index] += 1
    assert copy([place], [source]) == 0
    assert torch.equal(place, source)


def test_bits_are_compared_and_not_numbers() -> None:
    source = torch.zeros(ELEMENTS)
    place = source.clone()
    place[123] = -0.0
    assert copy([place], [source]) == 0
    place[123], source[123] = torch.nan, torch.nan
    assert copy([place], [source]) == source.nbytes


def test_of_a_large_tensor_only_the_parts_that_have_changed_are_copied() -> None:
    source = torch.rand(3 * host_copies._BATCH_BYTES // 4)
    place = source.clone()
    source[host_copies._BATCH_BYTES // 4 + 12_345] += 1
    assert copy([place], [source]) == 2 * host_copies._BATCH_BYTES
    assert torch.equal(place, source)


def test_an_error_leaves_no_thread_behind_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor() as threads:
        monkeypatch.setattr(host_copies, "copy_threads", lambda: threads)
        source = torch.ones(3)
        place = torch.zeros(3)
        with pytest.raises(ValueError, match="what comes after"), HostCopies() as copies:
            copies.add(place.data_ptr(), source.data_ptr(), source.nbytes)
            raise ValueError("what comes after")
        assert torch.equal(place, source)


def test_copies_are_made_with_fewer_threads_while_no_new_one_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    torch.set_num_threads(3)
    end_copy_threads()
    sources = [torch.randn(ELEMENTS)]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(5):  # more than there will be threads: none may wait forever for the end of one of these
            assert all(map(torch.equal, copied(sources), sources))
    assert all(map(torch.equal, copied(sources), sources))
