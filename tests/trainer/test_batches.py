from pathlib import Path

import pytest
import torch

from holdfast_trainer import corpus
from holdfast_trainer.batches import Batches, permuted, sample_window
from holdfast_trainer.config import DataConfig, ParallelConfig, TrainConfig, TrainerConfig

CPU = torch.device("cpu")


def batches(text_folder: Path, *, dp: int = 1, dp_index: int = 0, seed: int = 0) -> Batches:
    config = TrainerConfig(
        data=DataConfig(source=str(text_folder), cache_directory=text_folder.parent / "cache", sequence=16),
        parallel=ParallelConfig(dp=dp),
        train=TrainConfig(global_batch=8, seed=seed),
    )
    return Batches(config, corpus.prepare(config.data), dp_index=dp_index, device=CPU)


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


def test_targets_are_the_next_bytes_of_the_text(text_folder: Path) -> None:
    batch = batches(text_folder).training(3)
    assert batch.inputs.shape == batch.targets.shape == (8, 16)
    assert batch.inputs.dtype == torch.int64
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    text = b"".join(path.read_bytes() for path in sorted(text_folder.iterdir()))
    for sample, target in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert bytes([*sample, target[-1]]) in text


@pytest.mark.parametrize("part", ["training", "validation"])
def test_ranks_share_the_same_global_batch_at_every_degree(text_folder: Path, part: str) -> None:
    whole = getattr(batches(text_folder), part)(2)
    shares = [getattr(batches(text_folder, dp=4, dp_index=index), part)(2) for index in range(4)]
    assert torch.equal(torch.cat([share.inputs for share in shares]), whole.inputs)
    assert torch.equal(torch.cat([share.targets for share in shares]), whole.targets)


def test_order_is_that_of_the_seed_and_the_step(text_folder: Path) -> None:
    assert torch.equal(batches(text_folder).training(5).inputs, batches(text_folder).training(5).inputs)
    assert not torch.equal(batches(text_folder).training(5).inputs, batches(text_folder).training(6).inputs)
    assert not torch.equal(batches(text_folder).training(5).inputs, batches(text_folder, seed=1).training(5).inputs)


def test_validation_never_sees_training_text(text_folder: Path) -> None:
    validation = b"".join(
        path.read_bytes() for path in sorted(text_folder.iterdir()) if corpus.in_validation_part(path.name)
    )
    samples = batches(text_folder).validation(0).inputs.tolist()
    assert all(bytes(sample) in validation for sample in samples)
    assert len({bytes(sample) for sample in samples}) > 1
