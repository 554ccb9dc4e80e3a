"""How torch's tensors, modules, optimizers and pipelines must behave for the hooks, the trainer and the warm parent."""

import inspect
import subprocess
import sys

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import Shard, _utils
from torch.optim import AdamW
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from holdfast_trainer.parallel import activation_checkpointing
from holdfast_trainer.pipeline.bubble import COMPUTATIONS


def version() -> None:
    """It rises with a change in place. Of a fused optimizer, the version of its count of steps rises."""
    tensor = torch.zeros(2)
    before = tensor._version
    tensor.add_(1)
    assert tensor._version == before + 1
    parameter = nn.Parameter(torch.ones(2))
    optimizer = AdamW([parameter], fused=True)
    parameter.grad = torch.ones(2)
    optimizer.step()
    steps = optimizer.state[parameter]["step"]
    before = steps._version
    optimizer.step()
    assert steps._version > before


def metadata() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    assert state._metadata[""] == {"version": 2}  # type: ignore[attr-defined]


def offsets() -> None:
    mesh = init_device_mesh("cpu", (1,))
    shape, offset = _utils.compute_local_shape_and_global_offset((4, 3), mesh, (Shard(0),))
    assert (tuple(shape), tuple(offset)) == ((4, 3), (0, 0))


def products() -> None:
    """Operators are known by their packets, as the selective policy compares them."""
    missing = [name for name in activation_checkpointing.SAVED_PRODUCTS if not hasattr(torch.ops.aten, name)]
    assert missing == []
    assert torch.ops.aten.mm.default.overloadpacket in activation_checkpointing._SAVED_OPERATIONS


def skipped_step() -> None:
    """A fused optimizer does not step while ``found_inf`` is 1."""
    parameter = nn.Parameter(torch.ones(2))
    optimizer = AdamW([parameter], lr=0.1, fused=True)
    assert optimizer._step_supports_amp_scaling is True
    parameter.grad = torch.ones(2)
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    assert parameter.tolist() == [1.0, 1.0]
    optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    optimizer.step()
    assert parameter.tolist() != [1.0, 1.0]


def pipeline_stage() -> None:
    """Schedules call these methods of a stage by their names, so that a method of the object is called."""
    source = inspect.getsource(schedules)
    for name in COMPUTATIONS:
        assert callable(getattr(PipelineStage, name))
        assert f"stage.{name}(" in source


ENGINE = """
import os, torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from holdfast_agent.processes.cold_rank import why_no_fork
from tests.support.coroutines import wait_until
_setup_privateuseone_for_python_backend("contract")  # a device that needs no hardware
assert why_no_fork() == ""
torch.ones(2, requires_grad=True).sum().backward()
print(wait_until(why_no_fork, "a thread of the engine has its name"), flush=True)
child = os.fork()
if child == 0:
    try:
        torch.ones(2, requires_grad=True).sum().backward()
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(3)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def next_of_loaders() -> None:
    """One class has the ``__next__`` of all loaders, with and without workers."""
    kinds = (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter)
    assert all(kind.__next__ is dataloader._BaseDataLoaderIter.__next__ for kind in kinds)


def hooks_of_optimizers() -> None:
    """They are called around the step of every optimizer, fused or not, in this order, and not for a skipped step."""
    seen: list[str] = []
    handles = (
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: seen.append("before")),
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: seen.append("after")),
    )
    parameter = nn.Parameter(torch.ones(2))
    for options in ({"fused": True}, {"foreach": True}, {}):
        parameter.grad = torch.ones(2)
        AdamW([parameter], **options).step()  # type: ignore[arg-type]  # flags of the optimizer
    for handle in handles:
        handle.remove()
    AdamW([parameter]).step()
    assert seen == ["before", "after"] * 3


def evaluation() -> None:
    """It changes the modules below by another method: one call is one evaluation."""
    calls: list[nn.Module] = []

    class Watched(nn.Linear):
        def eval(self) -> "Watched":
            calls.append(self)
            return super().eval()

    model = nn.Sequential(Watched(1, 1))
    model.eval()
    assert not model[0].training
    assert calls == []


def engine_threads() -> None:
    """With a device, a backward pass starts threads of this name, and no fork of the process can run another one."""
    shown = subprocess.run([sys.executable, "-c", ENGINE], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("ran a backward pass\n")
    assert "Unable to handle autograd's threading in combination with fork-based multiprocessing" in shown.stdout
    assert shown.stdout.split()[-1] == "3"
