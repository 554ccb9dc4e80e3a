"""Several ranks on GPUs: with gloo they share one, with NCCL each needs its own."""

from pathlib import Path

import pytest

from tests.gpu.trainers import losses

pytestmark = [pytest.mark.gpu, pytest.mark.system]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses(cache=tmp_path_factory.mktemp("corpus"), device="cpu")


@pytest.mark.parametrize("zero", ["1", "3"])
def test_two_ranks_share_a_gpu_with_gloo(tmp_path: Path, alone: list[float], zero: str) -> None:
    flags = ("--parallel.dp", "2", "--parallel.zero", zero, "--distributed.backend", "gloo")
    assert losses(*flags, ranks=2, cache=tmp_path) == pytest.approx(alone, rel=2e-3)


@pytest.mark.parametrize(
    "flags", [("--parallel.dp", "2"), ("--parallel.tp", "2"), ("--parallel.pp", "2", "--parallel.microbatches", "2")]
)
def test_two_ranks_with_nccl_train_like_one(
    two_gpus: int, tmp_path: Path, alone: list[float], flags: tuple[str, ...]
) -> None:
    assert losses(*flags, ranks=2, cache=tmp_path) == pytest.approx(alone, rel=2e-3)
