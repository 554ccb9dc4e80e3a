"""Ranks on gloo, forked from one process that has imported torch: arguments SCENARIO FOLDER RANKS."""

import importlib
import io
import json
import logging
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import holdfast_hooks
from holdfast_hooks.hook_errors import OnceLog, UnknownStartError
from holdfast_hooks.restore.awaited_start import AwaitedStart
from holdfast_hooks.restore.slot_restore import restore
from holdfast_proto.rank_context import RankContext
from holdfast_proto.snapshot import Slot, allocate
from holdfast_proto.v1.session_pb2 import SpikeFound, StartFrom
from tests.trainer_hooks.conftest import SnapshotBench


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def launch(folder: Path, rank: int) -> None:
    box = folder / f"black-box-{rank}"
    context = RankContext(run="world", generation=0, agent=f"unix:{folder}/agent.sock", black_box=str(box))
    os.environ.update(context.to_environment())


def hang(folder: Path, rank: int) -> None:
    """Hang rank 1 in its second receive and rank 0 before its second send, until the file `release` appears.

    Both end when `end` does.
    """
    launch(folder, rank)
    group = dist.new_group([0, 1], group_desc="mesh_tp")
    value = torch.ones(1)
    # Before the hooks are attached: nothing has recorded it.
    dist.send(value, 1) if rank == 0 else dist.recv(value, 0)
    with holdfast_hooks.attach() as hooks:
        for _ in hooks.steps(until=1):
            for _ in range(3):
                dist.all_reduce(value)
            dist.all_reduce(value, group=group)
            if rank == 0:
                for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, value, 1)]):
                    request.wait()
                late = dist.all_reduce(value, async_op=True)
                wait_for(folder / "release")
                dist.send(value, 1)
                late.wait()
            else:
                dist.recv(value, 0)
                dist.irecv(value, 0).wait()  # type: ignore[union-attr]
                dist.all_reduce(value)
            wait_for(folder / "end")
    dist.send(value, 1) if rank == 0 else dist.recv(value, 0)  # as before the hooks


def corrupt(folder: Path, rank: int) -> None:
    """Train three steps under DistributedDataParallel; flip a bit on rank 1 in the last, then fail there."""
    launch(folder, rank)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = torch.nn.Linear(rank + 1, 1)  # this rank's own, under a name that the other rank has, too
    trained = torch.nn.parallel.DistributedDataParallel(model)
    with holdfast_hooks.attach(state={"model": model, "own": own}) as hooks:
        for step in hooks.steps(until=100):
            if step == 3:  # not the last one, which would wait for a slot for the state
                break
            trained(torch.full((1, 4), rank + 1.0)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2 and rank == 1:
                model.bias.detach().view(torch.int32)[3] ^= 1
        if rank == 1:
            raise ValueError("bad sample")


class Sharded:
    """A model and an optimizer that FSDP2 has spread over the world."""

    def __init__(self, seed: int, width: int = 6) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))
        for part in self.model:
            fully_shard(part)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}

    @property
    def shards(self) -> list[torch.Tensor]:
        """What this rank holds of each parameter."""
        return [parameter.to_local() for parameter in self.model.parameters()]  # type: ignore[attr-defined]

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = self.model(torch.randn(8, 4)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses


def take_snapshot(state: dict[str, Any], slot: Path, rank: int) -> Path:
    allocate(slot, 1 << 22)
    assert SnapshotBench(state, [slot], rank=rank).end(2, commanded=True) is not None
    return slot


def fsdp(folder: Path, rank: int) -> None:
    """Write whether a restored run equals the undisturbed one, and the snapshot's entry of each tensor."""
    undisturbed = Sharded(seed=0)
    undisturbed.train(3)
    slot = take_snapshot(undisturbed.state, folder / f"slot-{rank}", rank)
    losses = undisturbed.train(3)

    restored = Sharded(seed=7)
    step = restore(slot, restored.state, rank=rank)
    restored_losses = restored.train(3)
    try:
        restore(slot, Sharded(seed=0, width=10).state, rank=rank)
        refusal = ""
    except holdfast_hooks.ConfigurationError as error:
        refusal = str(error)
    with Slot(slot) as mapped:
        entries = {one.name: (one.shape, one.global_shape, one.global_offset) for one in mapped.meta().tensors}
    result = {
        "step": step,
        "same_losses": losses == restored_losses,
        "same_weights": all(map(torch.equal, undisturbed.shards, restored.shards)),
        "refusal": refusal,
        "entries": entries,
    }
    (folder / f"result-{rank}.json").write_text(json.dumps(result))


class Replicated:
    """A model under DistributedDataParallel, which sorts its gradients into two buckets after the first step."""

    def __init__(self, seed: int, **options: Any) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(4)))
        self.trained = torch.nn.parallel.DistributedDataParallel(self.model, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}

    def train(self, first: int, end: int) -> torch.Tensor:
        """Train the steps and return all parameters as one tensor."""
        for step in range(first, end):
            rows = torch.randn(8, 300, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
            self.trained(rows).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()


def ddp(folder: Path, rank: int) -> None:
    """Write whether runs that were restored after step 0, 1 and 3 equal the undisturbed one, and what else they say."""
    logged = io.StringIO()
    logging.getLogger("holdfast_hooks").addHandler(logging.StreamHandler(logged))
    result: dict[str, Any] = {}
    for trained in (1, 2, 4):
        undisturbed = Replicated(seed=0)
        undisturbed.train(0, trained)
        slot = take_snapshot(undisturbed.state, folder / f"slot-{rank}-{trained}", rank)
        restored = Replicated(seed=7, gradient_as_bucket_view=trained == 4)
        restore(slot, restored.state, rank=rank)
        assert all(parameter.grad is None for parameter in restored.model.parameters())
        result[f"after {trained}"] = torch.equal(undisturbed.train(trained, 6), restored.train(trained, 6))
    result["logged"] = logged.getvalue()
    static = Replicated(seed=7, static_graph=True)
    restore(slot, static.state, rank=rank)
    result["static_graph"] = logged.getvalue()
    (folder / f"result-{rank}.json").write_text(json.dumps(result))


def answers(folder: Path, rank: int) -> None:
    """Write what the ranks find out when they compare their answers. Rank 1 has no state of its own."""
    context = RankContext(
        run="world", generation=0, agent="unix:/none", black_box="/none", observed=True, restores=True
    )
    found = []
    for steps, generations in (((6, 6), (5, 5)), ((6, 9), (5, 5)), ((6, 6), (5, 6)), ((-1, -1), (5, 6))):
        start = AwaitedStart(context, rank, OnceLog())
        start.receive(StartFrom(step=steps[rank], generation=generations[rank], checkpoint="/checkpoints"))
        start.wait()
        try:
            start.agree({} if rank else {"model": torch.nn.Linear(1, 1)})
            found.append("")
        except UnknownStartError as error:
            found.append(str(error))
    (folder / f"result-{rank}.json").write_text(json.dumps(found))


class Spoilt(torch.nn.Linear):
    """A layer whose weight gets a gradient with one NaN while ``is_bad``. Its output is as ever."""

    is_bad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y + (self.weight[0, 0] * 0).sqrt() if self.is_bad else y


def bad_gradients(folder: Path, rank: int, *, wrap: Any) -> None:
    """Train six steps and skip those with a gradient that is not finite: rank 1 makes one in steps 1 and 3."""
    launch(folder, rank)
    torch.manual_seed(0)
    spoilt = Spoilt(4, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), spoilt, torch.nn.Linear(4, 4))
    trained = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with holdfast_hooks.attach(state={f"rank{rank}": model}) as hooks:
        for step in hooks.steps(until=100):
            if step == 6:  # not the last one, which would wait for a slot for the state
                break
            spoilt.is_bad = rank == 1 and step in (1, 3)
            trained(torch.ones(2, 4)).sum().backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            hooks.report(grad_norm=norm)
            if norm.isfinite():
                optimizer.step()
            optimizer.zero_grad()


def bad_gradients_ddp(folder: Path, rank: int) -> None:
    bad_gradients(folder, rank, wrap=torch.nn.parallel.DistributedDataParallel)


def bad_gradients_fsdp(folder: Path, rank: int) -> None:
    def wrap(model: torch.nn.Sequential) -> Any:
        for part in model:
            fully_shard(part)
        return fully_shard(model)

    bad_gradients(folder, rank, wrap=wrap)


def updates(folder: Path, rank: int) -> None:
    """Write what the ranks decide in each step, and when they hear of what. Each has other norms, and rank 1 a word."""
    norms = [[1.0, 2.0]] * 16 + [[math.nan, 2.0], [1.0, 50.0], [1.0, 20.0], [2.0, 1.0]]
    heard: list[list[Any]] = []
    answers = []
    with holdfast_hooks.attach(
        on_spike=lambda spike: heard.append([hooks.next_step - 1, *vars(spike).values()])
    ) as hooks:
        for step in hooks.steps(until=len(norms)):
            if (step, rank) == (18, 1):
                hooks._updates.receive(SpikeFound(tier="divergence", step=9))
            answers.append(hooks.should_update(torch.tensor(norms[step][rank])))
    (folder / f"result-{rank}.json").write_text(json.dumps([answers, heard]))


def main(scenario: str, folder: Path, ranks: int) -> None:
    children = []
    if scenario in ("corrupt", "bad_gradients_ddp", "ddp"):
        # Under DistributedDataParallel each rank would take its own time for it.
        importlib.import_module("torch._dynamo")
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
            globals()[scenario](folder, rank)
            dist.destroy_process_group()
            sys.exit(0)
        children.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
