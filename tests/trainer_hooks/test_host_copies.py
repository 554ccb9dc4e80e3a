import torch

from holdfast_hooks import host_copies
from holdfast_hooks.host_copies import HostCopies


def copied(sources: list[torch.Tensor]) -> list[torch.Tensor]:
    places = [torch.empty(source.shape, dtype=source.dtype) for source in sources]
    copies = HostCopies()
    for place, source in zip(places, sources, strict=True):
        copies.add(place, source)
    copies.run()
    return places


def test_tensors_of_all_sizes_are_copied_in_one_go() -> None:
    batch = host_copies._BATCH_BYTES // 4
    sizes = [1, 7, batch - 3, 1, 3 * batch + 1, 5, batch, 2]
    sources = [torch.randn(size) for size in sizes]
    assert all(map(torch.equal, copied(sources), sources))


def test_tensors_that_are_no_row_of_plain_elements_are_copied_as_torch_sees_them() -> None:
    numbers = torch.randn(30, 20, dtype=torch.complex64)
    sources = [numbers.t(), numbers.conj(), numbers[:, ::3], torch.tensor(3), numbers.conj().imag]
    assert all(map(torch.equal, copied(sources), sources))


def test_nothing_to_copy_is_no_error() -> None:
    assert copied([]) == []
