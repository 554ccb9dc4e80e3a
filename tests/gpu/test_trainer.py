"""The reference trainer's own paths on a GPU, in one process."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.timing import busy_for
from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import DataConfig, DistributedConfig, PrecisionConfig
from holdfast_trainer.data import corpus
from holdfast_trainer.data.batches import Batches
from holdfast_trainer.flops import peak_flops_per_s
from holdfast_trainer.moe.experts import can_group, grouped_swiglu
from holdfast_trainer.pipeline.bubble import CudaClock, make_meter
from holdfast_trainer.precision.fp8 import require_fp8
from holdfast_trainer.start_checks import expect_usable_here, has_gpu
from tests.gpu.trainers import losses

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="module")
def on_the_cpu(cache: Path) -> list[float]:
    return losses(cache=cache, device="cpu")


def test_training_with_nccl_gives_the_losses_of_the_cpu(
    gpu: torch.device, cache: Path, on_the_cpu: list[float]
) -> None:
    assert losses(cache=cache) == pytest.approx(on_the_cpu, rel=2e-3)


@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
def test_state_in_host_memory_gives_the_same_losses(
    gpu: torch.device, cache: Path, on_the_cpu: list[float], offload: str
) -> None:
    assert losses("--memory.offload", offload, cache=cache) == pytest.approx(on_the_cpu, rel=2e-3)


def test_training_in_fp8_learns_like_bf16(gpu: torch.device, cache: Path) -> None:
    pytest.importorskip("torchao", reason="needs torchao")
    try:
        require_fp8(gpu)
    except ConfigurationError as error:
        pytest.skip(f"needs fp8: {error}")
    exact = losses("--precision.compute", "bf16", cache=cache)
    assert losses("--precision.compute", "bf16", "--precision.fp8", "true", cache=cache) == pytest.approx(
        exact, rel=0.1
    )


def test_experts_in_one_kernel_give_what_a_loop_gives(gpu: torch.device) -> None:
    torch.manual_seed(0)
    counts = torch.tensor([5, 0, 11, 3], device=gpu)
    rows = torch.randn(24, 64, device=gpu, dtype=torch.bfloat16)
    gate, up = (torch.randn(4, 96, 64, device=gpu, dtype=torch.bfloat16) / 8 for _ in range(2))
    output = torch.randn(4, 64, 96, device=gpu, dtype=torch.bfloat16) / 8
    assert can_group(rows, gate)
    expected: list[Tensor] = []
    for expert, part in enumerate(torch.split(rows[:19], counts.tolist())):
        hidden = functional.silu(part @ gate[expert].T) * (part @ up[expert].T)
        expected.append(hidden @ output[expert].T)
    grouped = grouped_swiglu(rows, counts, gate, up, output)
    torch.testing.assert_close(grouped[:19], torch.cat(expected), rtol=5e-2, atol=5e-2)
    assert not grouped[19:].any()


def test_the_clock_of_the_pipeline_meter_measures_the_gpu(gpu: torch.device) -> None:
    clock = CudaClock()
    torch.cuda.synchronize()
    start = clock.mark()
    busy_for(0.3, "cuda")
    end = clock.mark()
    assert not clock.is_past(end)
    torch.cuda.synchronize()
    assert clock.is_past(end)
    assert 0.1 < clock.between_s(start, end) < 3.0
    assert isinstance(make_meter([], gpu)._clock, CudaClock)


def test_batches_come_from_pinned_memory(gpu: torch.device, cache: Path) -> None:
    config = TrainerConfig(data=DataConfig(source="stdlib", sequence=64, cache_directory=cache))
    text = corpus.prepare(config.data, vocabulary=config.model.vocabulary)
    batches = Batches(config, text, dp_index=0, device=gpu)
    try:
        assert batches.training(0).inputs.device == gpu
        assert batches._read_training(1).inputs.is_pinned()
    finally:
        batches.close()


def test_a_configuration_for_a_gpu_is_accepted_here(gpu: torch.device, cache: Path) -> None:
    assert has_gpu()
    data = DataConfig(source="stdlib", cache_directory=cache)
    expect_usable_here(TrainerConfig(data=data, distributed=DistributedConfig(device="cuda")))


def test_the_peak_of_this_gpu_is_known(gpu: torch.device) -> None:
    name = torch.cuda.get_device_name(gpu)
    if peak_flops_per_s(name, PrecisionConfig(compute="bf16")) is None:
        pytest.skip(f"needs a GPU with a known peak: {name} has none")
    assert peak_flops_per_s(name, PrecisionConfig(compute="bf16"))
