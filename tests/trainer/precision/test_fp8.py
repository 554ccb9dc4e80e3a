import sys

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast_hooks import ConfigurationError
from holdfast_trainer.precision.fp8 import convert_to_fp8, require_fp8
from tests.support.programs import package
from tests.trainer.world_of_one import adamw, losses, meta_model, sharded, small_config

CUDA = torch.device("cuda", 0)


pytestmark = pytest.mark.usefixtures("one_rank")


def test_linear_layers_of_the_blocks_that_fit_are_converted_and_keep_their_names() -> None:
    package("torchao")
    model = meta_model(small_config(model={"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1, "hidden": 40}))
    names = [name for name, _ in model.named_parameters()]
    plain = {name: type(module) for name, module in model.named_modules()}
    convert_to_fp8(model.layers)
    changed = [name for name, module in model.named_modules() if type(module) is not plain[name]]
    assert changed == [f"layers.0.attention.{name}" for name in ("query", "key", "value", "output")]
    assert [name for name, _ in model.named_parameters()] == names


def test_emulated_fp8_composes_with_tensor_parallelism_and_sharding_and_learns() -> None:
    package("torchao")
    config = small_config(precision={"compute": "bf16"})
    model = meta_model(config)
    convert_to_fp8(model.layers, emulate=True)
    plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "output": RowwiseParallel()}
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    for layer in model.layers:
        parallelize_module(model.get_submodule(f"layers.{layer}.feed_forward"), mesh["tp"], plan, src_data_rank=None)
    sharded(model, config, mesh["dp"])
    seen = losses(model, adamw(model), steps=40)
    assert seen[-1] < 0.6 * seen[0]
    plain = sharded(meta_model(config), config, mesh["dp"])
    exact = losses(plain, adamw(plain), steps=40)
    assert seen != exact
    assert seen == pytest.approx(exact, rel=0.1)
    gate = model.get_parameter("layers.0.feed_forward.gate.weight")
    assert isinstance(gate, DTensor)
    assert gate.dtype == torch.float32


def test_missing_package_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    message = r"^precision\.fp8 needs the package torchao: install the extra fp8 of holdfast-torch"
    with pytest.raises(ConfigurationError, match=message):
        convert_to_fp8(nn.Sequential(nn.Linear(16, 16)))


@pytest.mark.parametrize(("capability", "fits"), [((8, 0), False), ((8, 9), True), ((9, 0), True), ((10, 0), True)])
def test_gpu_without_fp8_is_refused(capability: tuple[int, int], fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    if fits:
        require_fp8(CUDA)
        return
    with pytest.raises(ConfigurationError, match=r"^precision\.fp8 needs a GPU of compute capability 8\.9, .* is 8\.0"):
        require_fp8(CUDA)


def test_cpu_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^precision\.fp8 needs a GPU, but this rank runs on cpu"):
        require_fp8(torch.device("cpu"))
