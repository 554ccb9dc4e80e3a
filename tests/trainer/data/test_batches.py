import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast_trainer.config import TrainerConfig, resized
from holdfast_trainer.config_sections import DataConfig, ParallelConfig, TrainConfig
from holdfast_trainer.data import corpus
from holdfast_trainer.data.batches import IGNORED, Batches, document_spans, fingerprint, permuted, sample_window
from holdfast_trainer.data.sources import in_validation_part
from holdfast_trainer.parallel.context_parallel import zigzag_positions

CPU = torch.device("cpu")
TOKENS = np.arange(12, dtype=np.uint16).reshape(2, 6)

Open = Callable[..., Batches]


@pytest.fixture
def batches(text_folder: Path) -> Iterator[Open]:
    opened: list[Batches] = []

    def open_batches(
        *,
        dp: int = 1,
        dp_index: int = 0,
        cp: int = 1,
        cp_index: int = 0,
        seed: int = 0,
        ranks: int | None = None,
        **settings: Any,
    ) -> Batches:
        data = DataConfig(
            source=str(text_folder), cache_directory=text_folder.parent / "cache", sequence=16, **settings
        )
        train = TrainConfig(global_batch=8, seed=seed)
        config = TrainerConfig(data=data, parallel=ParallelConfig(dp=dp, cp=cp), train=train)
        text = corpus.prepare(data, vocabulary=256)
        config = resized(config, ranks or config.parallel.ranks)
        opened.append(Batches(config, text, dp_index=dp_index, cp_index=cp_index, device=CPU))
        return opened[-1]

    yield open_batches
    for one in opened:
        one.close()


def test_targets_are_the_next_bytes_of_the_text(batches: Open, text_folder: Path) -> None:
    batch = batches().training(3)
    assert batch.inputs.shape == batch.targets.shape == (8, 16)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.positions, torch.arange(16))
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    text = b"".join(path.read_bytes() for path in sorted(text_folder.iterdir()))
    for sample, target in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert bytes([*sample, target[-1]]) in text


@pytest.mark.parametrize("part", ["training", "validation"])
def test_ranks_share_the_same_global_batch_at_every_degree(batches: Open, part: str) -> None:
    whole = getattr(batches(), part)(2)
    shares = [getattr(batches(dp=4, dp_index=index), part)(2) for index in range(4)]
    assert torch.equal(torch.cat([share.inputs for share in shares]), whole.inputs)
    assert torch.equal(torch.cat([share.targets for share in shares]), whole.targets)


@pytest.mark.parametrize("part", ["training", "validation"])
def test_uneven_shares_have_each_sample_once_and_are_padded_to_the_same_size(batches: Open, part: str) -> None:
    space = ord(" ")
    whole = getattr(batches(document_end=space), part)(2)
    shares = [getattr(batches(dp=4, ranks=3, dp_index=index, document_end=space), part)(2) for index in range(3)]
    counted = [(share.targets != IGNORED).all(dim=1) for share in shares]
    assert [rows.tolist() for rows in counted] == [[True] * 3 + [False]] * 2 + [[True] * 2 + [False] * 2]
    for name in ("inputs", "targets", "spans"):
        real = [getattr(share, name)[rows] for share, rows in zip(shares, counted, strict=True)]
        assert torch.equal(torch.cat(real), getattr(whole, name))
    for share, rows in zip(shares, counted, strict=True):
        assert torch.equal(share.inputs[~rows], share.inputs[rows][-1:].expand((~rows).sum(), -1))
        assert (share.targets[~rows] == IGNORED).all()


def test_padding_is_no_part_of_the_fingerprint(batches: Open) -> None:
    # The first of seven ranks has two samples, as each of four has. The last one has a sample and a repetition.
    assert batches(dp=8, ranks=7).training(0).fingerprint == batches(dp=4).training(0).fingerprint
    assert (
        batches(dp=8, ranks=7, dp_index=6).training(0).fingerprint == batches(dp=8, dp_index=7).training(0).fingerprint
    )


@pytest.mark.parametrize("part", ["training", "validation"])
def test_context_parallel_rank_gets_its_positions_of_each_sample(batches: Open, part: str) -> None:
    whole = getattr(batches(), part)(2)
    for index in range(4):
        share = getattr(batches(cp=4, cp_index=index), part)(2)
        positions = zigzag_positions(16, 4, index)
        assert torch.equal(share.positions, positions)
        assert torch.equal(share.inputs, whole.inputs[:, positions])
        assert torch.equal(share.targets, whole.targets[:, positions])
        assert share.fingerprint == whole.fingerprint


def test_documents_are_those_of_the_whole_sample_on_every_context_parallel_rank(batches: Open) -> None:
    space = ord(" ")
    whole = batches(document_end=space).training(0)
    assert whole.spans is not None
    assert torch.equal(whole.spans, document_spans(whole.inputs, space))
    assert batches().training(0).spans is None
    for cp_index in range(2):
        share = batches(cp=2, cp_index=cp_index, document_end=space).training(0)
        assert share.spans is not None
        positions = zigzag_positions(16, 2, cp_index)
        chosen = [row for row, sample in enumerate(share.inputs) if torch.equal(sample, whole.inputs[row, positions])]
        assert chosen == list(range(8))
        assert torch.equal(share.spans, whole.spans[:, positions])


def test_order_is_that_of_the_seed_and_the_step(batches: Open) -> None:
    assert torch.equal(batches().training(5).inputs, batches().training(5).inputs)
    assert not torch.equal(batches().training(5).inputs, batches().training(6).inputs)
    assert not torch.equal(batches().training(5).inputs, batches(seed=1).training(5).inputs)


def test_batches_read_ahead_are_the_same_bits(batches: Open) -> None:
    ahead, direct = batches(prefetch=3), batches(prefetch=0)
    for step in [*range(6), 40, 41, 2]:
        one, other = ahead.training(step), direct.training(step)
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
        assert one.fingerprint == other.fingerprint
    assert ahead.wait_s > 0
    assert direct.wait_s > 0


def test_each_share_of_each_step_has_a_fingerprint_of_its_own(batches: Open, text_folder: Path) -> None:
    ranks = [batches(dp=4, dp_index=index) for index in range(4)]
    steps = 2 * sum(path.stat().st_size for path in text_folder.iterdir()) // (16 * 8)  # two epochs
    prints = [rank.training(step).fingerprint for rank in ranks for step in range(steps)]
    assert len(set(prints)) == len(prints)


def test_closing_leaves_no_thread(batches: Open) -> None:
    before = set(threading.enumerate())
    opened = batches()
    opened.training(0)
    assert set(threading.enumerate()) != before
    opened.close()
    assert set(threading.enumerate()) == before


def test_validation_never_sees_training_text(batches: Open, text_folder: Path) -> None:
    held_out = [path for path in sorted(text_folder.iterdir()) if in_validation_part(path.name, 0.05)]
    validation = b"".join(path.read_bytes() for path in held_out)
    samples = batches().validation(0).inputs.tolist()
    assert all(bytes(sample) in validation for sample in samples)
    assert len({bytes(sample) for sample in samples}) > 1


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


def test_window_epoch_order_and_content_all_count_in_sixteen_bytes() -> None:
    damaged = TOKENS.copy()
    damaged[1, 5] += 1
    prints = {
        fingerprint([0, 0], [4, 9], TOKENS),
        fingerprint([0, 0], [4, 9], TOKENS.copy()),
        fingerprint([0, 0], [4, 8], TOKENS),
        fingerprint([1, 1], [4, 9], TOKENS),
        fingerprint([0, 0], [9, 4], TOKENS),
        fingerprint([0, 0], [4, 9], damaged),
    }
    assert [len(each) for each in prints] == [16] * 5
