"""Ranks that are harmed, forked from one process that has imported torch. Each line of its stdin is a JSON request."""

import contextlib
import json
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first dispatch mode imports it: too slow within the timeout of a collective
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import holdfast_hooks
from holdfast_hooks import Phase
from holdfast_hooks.faults import Fault, Injector
from holdfast_hooks.faults.corruption import local
from holdfast_hooks.progress.call_watch import CallWatch, GroupCall

STEPS = 4
GLOO_TIMEOUT_S = 2.0
WORLD_SIZE = 2


def say(result: Path, **values: Any) -> None:
    with result.open("a") as stream:
        stream.write(json.dumps(values) + "\n")


@contextlib.contextmanager
def world(folder: Path, rank: int) -> Iterator[None]:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=GLOO_TIMEOUT_S),
    )
    yield
    dist.destroy_process_group()


def alone(folder: Path, rank: int, fault: Fault, result: Path) -> None:
    """Report each phase of a loop when it is entered, how often another thread has run since the last one, and the
    longest time between two of its turns.
    """
    turns_s: list[float] = []

    def take_turns() -> None:
        while True:
            turns_s.append(time.monotonic())
            time.sleep(0.001)

    threading.Thread(target=take_turns, daemon=True).start()
    with holdfast_hooks.attach() as hooks:
        Injector.into(hooks).arm(fault)
        for step in hooks.steps(until=STEPS):
            for phase in (Phase.DATA, Phase.FORWARD_BACKWARD, Phase.OPTIMIZER):
                before, began_s = len(turns_s), time.monotonic()
                hooks.enter(phase)
                taken_s = turns_s[before:]
                pauses_s = map(operator.sub, [*taken_s, time.monotonic()], [began_s, *taken_s])
                say(result, step=step, phase=phase, turns=len(taken_s), pause_s=max(pauses_s))


def reduces(folder: Path, rank: int, fault: Fault, result: Path) -> None:
    """Report the results of one all-reduce in each of two groups, step by step, and the groups' numbers at the end."""
    with world(folder, rank), holdfast_hooks.attach() as hooks:
        groups = [dist.new_group([0, 1], timeout=timedelta(seconds=GLOO_TIMEOUT_S)) for _ in range(2)]
        Injector.into(hooks).arm(fault)
        try:
            for step in hooks.steps(until=STEPS):
                for group in groups:
                    value = torch.full((4,), 10.0 * step + rank)
                    dist.all_reduce(value, group=group)
                    say(result, step=step, sum=value[0].item())
        finally:
            say(result, seqs=[group._get_sequence_number_for_group() for group in groups])
            # Neither rank leaves before the other has seen the failure itself, unless the other was aborted.
            (folder / f"done-{rank}").touch()
            deadline_s = time.monotonic() + GLOO_TIMEOUT_S
            while not (folder / f"done-{1 - rank}").exists() and time.monotonic() < deadline_s:
                time.sleep(0.01)


def messages(folder: Path, rank: int, fault: Fault, result: Path) -> None:
    """Report what rank 1 receives from rank 0 in each step."""
    with world(folder, rank), holdfast_hooks.attach() as hooks:
        Injector.into(hooks).arm(fault)
        for step in hooks.steps(until=STEPS):
            value = torch.full((4,), float(step))
            if rank == 0:
                for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, value, 1)]):
                    request.wait()
            elif step < STEPS - 1:
                dist.recv(value, 0)
            say(result, step=step, value=value[0].item())


def seen_calls(folder: Path, rank: int, fault: Fault, result: Path) -> None:
    """Report the calls that pass by in torch's kinds of parallelism."""
    names: list[str] = []

    def note(call: GroupCall) -> Any:
        names.append(call.name)
        return call.run()

    def watched(name: str, work: Callable[[], Any]) -> None:
        names.clear()
        watch = CallWatch(note)
        watch.start()
        work()
        assert watch.stop()
        say(result, kind=name, calls=names)

    with world(folder, rank):
        mesh = init_device_mesh("cpu", (WORLD_SIZE,))
        sharded = torch.nn.Linear(4, 4)
        fully_shard(sharded, mesh=mesh)
        replicated = DistributedDataParallel(torch.nn.Linear(4, 4))
        columns = torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)]))
        rows = distribute_tensor(torch.ones(2, 4), mesh, [Replicate()])

        def tensor_parallel() -> None:
            product = rows @ columns
            assert isinstance(product, DTensor)
            product.redistribute(mesh, [Replicate()]).sum().backward()  # type: ignore[no-untyped-call]

        watched("fsdp", lambda: sharded(torch.ones(2, 4)).sum().backward())
        watched("ddp", lambda: replicated(torch.ones(2, 4)).sum().backward())
        watched("tp", tensor_parallel)


def make_model(layout: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    if layout == "fsdp":
        for block in model:
            fully_shard(block)
        fully_shard(model)
    return DistributedDataParallel(model) if layout == "ddp" else model


def numbers(folder: Path, rank: int, fault: Fault, result: Path, layout: str) -> None:
    """Report in each step how many bits of the weights differ from the first, and whether gradients are finite."""
    with world(folder, rank):
        dist.barrier()  # a layout without collectives may end here while the other rank still connects
        model = make_model(layout)
        with holdfast_hooks.attach(state={"model": model}) as hooks:
            Injector.into(hooks).arm(fault)
            before = bits(model)
            for step in hooks.steps(until=STEPS):
                after = bits(model)
                flipped = sum(int(a ^ b).bit_count() for a, b in zip(before, after, strict=True))
                model.zero_grad()
                model(torch.ones(3, 4)).square().sum().backward()
                gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
                finite = all(local(gradient).isfinite().all().item() for gradient in gradients)
                say(result, step=step, flipped=flipped, finite=finite)


def bits(model: torch.nn.Module) -> list[int]:
    """Return the weights that this rank holds, each as an unsigned integer."""
    weights = [local(parameter.detach()).view(torch.int32).flatten() for parameter in model.parameters()]
    return [number & 0xFFFFFFFF for number in torch.cat(weights).tolist()]


def fork(request: dict[str, Any]) -> list[int]:
    folder, pids = Path(request.pop("folder")), []
    scenario, ranks, fault = globals()[request.pop("scenario")], request.pop("ranks"), Fault(**request.pop("fault"))
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            descriptor = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
            scenario(folder, rank, fault, folder / f"result-{rank}", **request)
            sys.exit(0)
        pids.append(pid)
    return pids


def main() -> None:
    for line in iter(sys.stdin.readline, ""):
        pids = fork(json.loads(line))
        print(json.dumps(pids), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)


if __name__ == "__main__":
    main()
