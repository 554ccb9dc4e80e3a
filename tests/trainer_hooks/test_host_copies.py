from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from holdfast_hooks import host_copies
from holdfast_hooks.host_copies import HostCopies


def copied(sources: list[torch.Tensor]) -> list[torch.Tensor]:
    places = [torch.empty_like(source) for source in sources]
    with HostCopies() as copies:
        for place, source in zip(places, sources, strict=True):
            copies.add(place.data_ptr(), source.data_ptr(), source.nbytes)
    return places


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_all_sizes_are_copied_in_one_go(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        batch = host_copies._BATCH_BYTES // 4
        sizes = [1, 7, batch - 3, 1, 3 * batch + 1, 5, batch, 2]
        sources = [torch.randn(size) for size in sizes]
        assert all(map(torch.equal, copied(sources), sources))
    finally:
        torch.set_num_threads(before)


def test_nothing_to_copy_is_no_error() -> None:
    assert copied([]) == []


def test_an_error_leaves_no_thread_behind_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor() as threads:
        monkeypatch.setattr(host_copies, "copy_threads", lambda: threads)
        source = torch.ones(3)
        place = torch.zeros(3)
        with pytest.raises(ValueError, match="what comes after"), HostCopies() as copies:
            copies.add(place.data_ptr(), source.data_ptr(), source.nbytes)
            raise ValueError("what comes after")
        assert torch.equal(place, source)
