import pytest

from holdfast_trainer.data.order import permuted, sample_window


@pytest.mark.parametrize("size", [1, 2, 3, 16, 17, 1000])
def test_permutation_reaches_every_place_once(size: int) -> None:
    assert sorted(permuted(index, size, b"key") for index in range(size)) == list(range(size))


def test_permutation_depends_on_its_key() -> None:
    orders = {tuple(permuted(index, 100, key) for index in range(100)) for key in (b"a", b"b", b"c")}
    assert len(orders) == 3
    assert tuple(range(100)) not in orders


def test_every_epoch_has_all_windows_in_an_order_of_its_own() -> None:
    epochs = [[sample_window(epoch * 50 + i, 50, seed=0) for i in range(50)] for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(50))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
