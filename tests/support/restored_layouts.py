"""Worlds that save a state in one layout and load it in others: ``restored_layouts.py FOLDER CASE...``.

A case is ``SAVED>LOADED[>LOADED...]``. Every rank of every world writes its state to a file
``CASE.WORLD.RANK.json``, for the test to compare.
"""

import hashlib
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # import it before the fork, as optimizers do at their first use
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import holdfast_hooks
from holdfast_checkpoint.format.slot_shard import read_shard, write_shard
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.restore.dcp import CheckpointReader, CheckpointWriter
from holdfast_hooks.restore.starting_point import start_from
from holdfast_hooks.snapshots.slot_requests import SlotRequests
from holdfast_hooks.snapshots.snapshot_taker import SnapshotTaker
from holdfast_hooks.telemetry.own_device import OwnDevice
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_hooks.updates.usual_norm import KEY, UsualNorm
from holdfast_proto.rank_context import RankContext
from holdfast_proto.snapshot import Slot, allocate
from holdfast_proto.v1.session_pb2 import SlotGrant

STEP = 2
WIDTHS = (6, 8, 5)
"""Widths of layers. No degree divides all of them, so parts are uneven and one is empty."""
PLAN = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Replicate()),
}

SIZES = {"one": 1, "dp2": 2, "dp4": 4, "hsdp": 4, "tp2-dp2": 4, "pp2": 2, "pp2-dp2": 4, "other": 2}
"""Layout -> its world size. ``other`` is another model on dp2."""


class Position:
    """The position in the data: plain values, and a tensor that every rank has for itself."""

    def __init__(self, seen: int) -> None:
        self.state: dict[str, Any] = {"seen": seen, "order": torch.full((3,), seen)}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class Stage(torch.nn.Module):
    """Some parts of the model, under their names in the whole model."""

    def __init__(self, parts: dict[str, torch.nn.Module]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


class Training:
    """A norm and two layers, and AdamW, in one of the layouts."""

    def __init__(self, layout: str, rank: int, seed: int) -> None:
        torch.manual_seed(seed)
        first, second, third = WIDTHS if layout != "other" else (6, 8, 4)
        parts: dict[str, torch.nn.Module] = {
            "norm": torch.nn.LayerNorm(first),
            "up": torch.nn.Linear(first, second, bias=layout != "other"),
            "down": torch.nn.Linear(second, third),
        }
        if layout == "other":
            parts["up"].bfloat16()
        self.stages = [Stage(parts)]
        self.coordinates = {"pp": 0, "dp": rank, "tp": 0}
        if layout.startswith("pp2"):
            stage = rank * 2 // SIZES[layout]
            names = ["norm", "up"] if stage == 0 else ["down"]
            self.stages = [Stage({name: parts[name]}) for name in names]
            self.coordinates = {"pp": stage, "dp": rank % (SIZES[layout] // 2), "tp": 0}
        self._spread(layout)
        parameters = [parameter for stage in self.stages for parameter in stage.parameters()]
        groups = [
            {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": 0.1},
            {"params": [parameter for parameter in parameters if parameter.ndim == 1], "lr": 0.02},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.05)
        self.position = Position(seed)

    def _spread(self, layout: str) -> None:
        names, shape = {
            "dp2": (("dp",), (2,)), "other": (("dp",), (2,)), "dp4": (("dp",), (4,)),
            "hsdp": (("replicate", "dp"), (2, 2)), "tp2-dp2": (("dp", "tp"), (2, 2)),
            "pp2-dp2": (("pp", "dp"), (2, 2)),
        }.get(layout, ((), ()))  # fmt: skip
        if not names:
            return
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for stage in self.stages:
            if "tp" in names:
                parallelize_module(stage, mesh["tp"], PLAN)
                self.coordinates = {"pp": 0, "dp": dist.get_rank() // 2, "tp": dist.get_rank() % 2}
            if "dp" in names:
                data: DeviceMesh = mesh if layout == "hsdp" else mesh["dp"]
                fully_shard(stage, mesh=data)

    @property
    def state(self) -> dict[str, Any]:
        return {
            "model": holdfast_hooks.merged(self.stages),
            "optimizer": holdfast_hooks.by_name(self.optimizer, self.stages),
            "position": self.position,
        }

    def train(self) -> None:
        """Train two steps with gradients that depend only on the seed."""
        for _ in range(2):
            for stage in self.stages:
                for parameter in stage.parameters():
                    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                    gradient = local.detach() * 0.5 + 0.125
                    parameter.grad = (
                        DTensor.from_local(
                            gradient, parameter.device_mesh, parameter.placements, run_check=False,
                            shape=parameter.shape, stride=parameter.stride(),
                        )
                        if isinstance(parameter, DTensor)
                        else gradient
                    )  # fmt: skip
            self.optimizer.step()

    def digests(self) -> dict[str, str]:
        """Return digests of the full tensors by name. The collectives for this involve all ranks that share them."""
        found = {}
        for stage in self.stages:
            for name, parameter in stage.named_parameters():
                found[f"model/{name}"] = digest(parameter)
                for key, value in self.optimizer.state[parameter].items():
                    found[f"optimizer/{name}/{key}"] = digest(value)
        return found


def digest(tensor: torch.Tensor) -> str:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return hashlib.blake2b(bytes(whole.detach().flatten().view(torch.uint8).tolist())).hexdigest()


def context_of(folder: Path, **fields: Any) -> RankContext:
    return RankContext(run="run", generation=1, agent="unix:/none", black_box=str(folder / "none"), **fields)


def save(folder: Path, layout: str, rank: int) -> dict[str, Any]:
    """Train, snapshot and write the checkpoint as agents do. Write the model with dcp.save, too."""
    training = Training(layout, rank, seed=1)
    training.train()
    random.seed(rank)
    torch.manual_seed(rank)
    slot = folder / f"saved-{rank}.slot"
    allocate(slot, 1 << 20)
    norms = UsualNorm()
    norms.judge(2.5)
    slot_requests = SlotRequests(OnceLog())
    slot_requests.receive(SlotGrant(paths=[str(slot)]))
    snapshots = SnapshotTaker(
        state=training.state, context=context_of(folder), rank=rank, slot_requests=slot_requests,
        timeline=Timeline(lambda step, phase, unix_ns: None), device=OwnDevice("cpu", {}, may_have_gpus=False),
        once=OnceLog(), coordinates=training.coordinates, own={KEY: norms},
    )  # fmt: skip
    assert snapshots.at_boundary(STEP, commanded=True, last=False) is not None, snapshots.refusal
    checkpoints = CheckpointDirectory(folder / "checkpoints", kept=2)
    index = write_shard(slot, checkpoints.step_directory(STEP), run="run", world_size=SIZES[layout])
    stored = [tensor.entry.name for tensor in index.tensors if tensor.is_stored and tensor.entry.writer is not None]
    dcp_save(
        {"model": holdfast_hooks.merged(training.stages).state_dict()}, storage_writer=CheckpointWriter(folder / "dcp")
    )
    if SIZES[layout] > 1:
        dist.barrier()
    if rank == 0:
        assert checkpoints.commit_if_complete(STEP, SIZES[layout], "run") is not None
    return {"tensors": training.digests(), "drawn": [random.random(), torch.rand(1).item()], "stored": stored}


def load(folder: Path, layout: str, rank: int) -> dict[str, Any]:
    """Start from the checkpoint, with slots if a world of this size wrote it. Load the model with dcp.load, too."""
    training = Training(layout, rank, seed=99)
    checkpoints = CheckpointDirectory(folder / "checkpoints", kept=2)
    directory = checkpoints.step_directory(STEP)
    slot = folder / f"{layout}-{rank}.slot"
    if checkpoints.load_manifest(STEP).world_size == SIZES[layout]:
        allocate(slot, 1 << 20)
        read_shard(directory, rank, slot, generation=1)
    context = context_of(folder, restore_slot=str(slot) if slot.exists() else "", restore_checkpoint=str(directory))
    before = {name: digest(value) for stage in training.stages for name, value in stage.named_parameters()}
    refusal = ""
    norms = UsualNorm()
    try:
        step = start_from(context, training.state, rank=rank, coordinates=training.coordinates, own={KEY: norms})
        assert step == STEP
    except holdfast_hooks.ConfigurationError as error:
        refusal = str(error)
        assert before == {name: digest(value) for stage in training.stages for name, value in stage.named_parameters()}
        return {"refusal": refusal}
    drawn = [random.random(), torch.rand(1).item()]
    loaded = Training(layout, rank, seed=98)
    dcp_load(
        {"model": holdfast_hooks.merged(loaded.stages).state_dict()}, storage_reader=CheckpointReader(folder / "dcp")
    )
    return {
        "tensors": training.digests(),
        "drawn": drawn,
        "norms": norms.state_dict(),
        "dcp": {f"model/{name}": digest(value) for stage in loaded.stages for name, value in stage.named_parameters()},
        "position": [training.position.state["seen"], training.position.state["order"].tolist()],
        "groups": [[group["lr"], group["weight_decay"]] for group in training.optimizer.param_groups],
        "slot": Slot(slot).header.state.name if slot.exists() else "",
    }


def run_world(folder: Path, case: str, number: int, layout: str, scenario: Callable[..., dict[str, Any]]) -> None:
    """Fork the ranks of one world and check that they end well."""
    size = SIZES[layout]
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            try:
                torch.set_num_threads(1)
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
                if size > 1:
                    store = f"file://{folder}/store-{number}"
                    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
                result = scenario(folder, layout, rank)
                (folder.parent / f"{case}.{number}.{rank}.json").write_text(json.dumps(result))
            except BaseException:  # noqa: BLE001 - a rank must end here, after any error
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        if os.waitpid(pid, 0)[1]:
            sys.exit(f"{case}: a rank of world {number} failed")


def main(folder: Path, cases: list[str]) -> None:
    for case in cases:
        place = folder / f"folder of {case}"
        place.mkdir()
        saved, *loaded = case.split(">")
        run_world(place, case, 0, saved, save)
        for number, layout in enumerate(loaded, 1):
            run_world(place, case, number, layout, load)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
