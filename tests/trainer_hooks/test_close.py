"""Closing the hooks undoes what they change in their process."""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import holdfast_hooks
from holdfast_hooks.faults import Fault, Injector
from holdfast_hooks.faults.fault import Site
from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.progress.point_to_point import PointToPointRecord
from holdfast_hooks.telemetry.final_traceback import FinalTraceback
from holdfast_hooks.telemetry.timeline import Timeline
from holdfast_proto.rank_context import RankContext
from tests.trainer_hooks.conftest import AgentServer, run_python, wait_for_slots

Launch = Callable[..., RankContext]

PROCESS = """
    import gc, json, os, sys, threading, time, weakref
    import torch, torch.distributed as dist
    from torch.optim import optimizer as torch_optimizer
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
    import holdfast_hooks
    from holdfast_hooks.faults import Fault, Injector

    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def patchable():
        modules = [vars(module)[hooks] for module in model.modules() for hooks in vars(module) if "_hooks" in hooks]
        return {
            "excepthook": sys.excepthook,
            "excepthook of threads": threading.excepthook,
            "send": vars(dist.ProcessGroup)["send"],
            "recv": vars(dist.ProcessGroup)["recv"],
            "steps of optimizers": dict(torch_optimizer._global_optimizer_pre_hooks),
            "modules": [dict(hooks) for hooks in modules],
            "dispatch modes": _get_current_dispatch_mode_stack(),
            "clocks": (time.time, time.time_ns),
            "environment": dict(os.environ),
            "imports": (list(sys.meta_path), list(sys.path_hooks)),
            "tracing": (sys.gettrace(), sys.getprofile()),
        }

    def train():
        with holdfast_hooks.attach(state={"model": model, "optimizer": optimizer}) as hooks:
            hooks.watch_gradients({"first": model[0], "second": model[2]})
            injector = Injector.into(hooks)
            injector.arm(Fault("clock-jump", duration_s=3600), Fault("lost-message", step=1))
            injector.arm(Fault("nan-gradient", step=2), Fault("kill", step=9))
            for step in hooks.steps(until=10):
                while hooks._sidecar._slot_requests.grant is None:
                    time.sleep(0.01)
                if step == 2:
                    break
                model(torch.ones(2, 512)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            changed.update(name for name, value in patchable().items() if value != before[name])
            changed.update(thread.name.rstrip("0123456789_-") for thread in threading.enumerate())
        hooks.close()
        hooks.close()
        return weakref.ref(hooks)

    before, changed = patchable(), set()
    for _ in range(2):
        hooks = train()
        assert patchable() == before, [name for name, value in patchable().items() if value != before[name]]
        assert sys.excepthook is before["excepthook"] and vars(dist.ProcessGroup)["send"] is before["send"]
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")] == []
        deadline_s = time.monotonic() + 10  # gRPC ends its own threads a moment later
        while threading.active_count() > 1:
            assert time.monotonic() < deadline_s, threading.enumerate()
            time.sleep(0.01)
        gc.collect()
        assert hooks() is None, gc.get_referrers(hooks())  # nothing in the process would call them any more
    print(json.dumps(sorted(changed)))
"""


def test_a_process_is_as_before_after_closing_and_can_attach_again(
    agent: AgentServer, launch: Launch, make_slots: Callable[..., list[Path]]
) -> None:
    context = launch(snapshot_every=1)
    agent.slots = make_slots(nbytes=16 << 20)
    ended = run_python(PROCESS, **{**context.to_environment(), "RANK": "0", "WORLD_SIZE": "1"})
    assert ended.returncode == 0, ended.stderr
    expected = {"excepthook", "excepthook of threads", "send", "recv", "modules", "dispatch modes", "clocks"}
    assert expected | {"holdfast-reporter", "holdfast-link", "holdfast-copies"} <= set(json.loads(ended.stdout))
    assert [step.step for step in agent.steps] == [0, 1, 0, 1]
    assert [report.finished for report in agent.of("report")].count(True) == 2


def test_closing_after_an_error_puts_the_exception_hooks_back(agent: AgentServer, launched: RankContext) -> None:
    before = sys.excepthook, vars(dist.ProcessGroup)["send"]
    with pytest.raises(ZeroDivisionError), holdfast_hooks.attach() as hooks:
        raise ZeroDivisionError
    assert sys.excepthook is not before[0]  # it turns a ConfigurationError into an exit code
    hooks.close()
    assert (sys.excepthook, vars(dist.ProcessGroup)["send"]) == before


def test_an_exception_hook_that_was_put_on_top_stays_and_ours_only_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException] = []
    kept: list[str] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: shown.append(error))
    words = FinalTraceback(keep=kept.append, send=kept.append)
    words.install()
    ours = sys.excepthook

    def on_top(*arguments: Any) -> None:
        ours(*arguments)

    sys.excepthook = on_top
    words.uninstall()
    assert sys.excepthook is on_top
    error = holdfast_hooks.ConfigurationError("set --ranks")
    on_top(type(error), error, None)
    assert (shown, kept) == ([error], [])


@pytest.fixture
def process_group(monkeypatch: pytest.MonkeyPatch) -> type:
    """A class instead of torch's, so that none of its calls needs a peer."""

    class ProcessGroup:
        group_name = "0"
        sent = 0

        def send(self, tensors: list[torch.Tensor], peer: int) -> None:
            type(self).sent += 1

        def recv(self, tensors: list[torch.Tensor], peer: int) -> None: ...

        def _get_sequence_number_for_group(self) -> int:
            return 0

    monkeypatch.setattr(dist, "ProcessGroup", ProcessGroup)
    monkeypatch.setattr(dist, "get_global_rank", lambda group, peer: peer)
    return ProcessGroup


def test_a_wrapper_that_was_put_on_top_of_ours_stays_and_ours_records_no_more(process_group: Any) -> None:
    record = PointToPointRecord(None, OnceLog())
    record.install()
    ours, original_recv = process_group.send, vars(process_group)["recv"]
    process_group().send([torch.ones(1)], 1)
    assert [channel.enqueued for channel in record.advance()] == [1]

    def on_top(*arguments: Any) -> Any:
        return ours(*arguments)

    process_group.send = on_top
    record.uninstall()
    assert process_group.send is on_top
    assert vars(process_group)["recv"] is not original_recv
    process_group().send([torch.ones(1)], 1)
    assert process_group.sent == 2
    assert record.advance() == []


def test_calls_are_not_wrapped_again_by_a_step_after_closing(process_group: Any) -> None:
    original = vars(process_group)["send"]
    record = PointToPointRecord(None, OnceLog())
    record.install()
    assert vars(process_group)["send"] is not original
    record.uninstall()
    record.install()
    assert vars(process_group)["send"] is original


def test_a_clock_that_was_wrapped_while_it_was_wrong_is_right_after_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", time.time)  # puts the real one back, whatever happens here
    real_s = time.time()
    with holdfast_hooks.attach() as hooks:
        Injector.into(hooks).arm(Fault("clock-jump", duration_s=7200))
        next(hooks.steps(until=2))
        jumped = time.time
        time.time = lambda: 1.0 * jumped()
        assert time.time() - real_s >= 7200
    assert time.time() - real_s < 3600


def test_an_injector_below_another_one_passes_moments_on_after_it_is_disarmed() -> None:
    recorded: list[int] = []
    timeline = Timeline(lambda step, phase, unix_ns: recorded.append(step))
    first, second = (Injector(Site(timeline, {}), rank=0) for _ in range(2))
    first.arm(Fault("kill", step=9))
    second.arm(Fault("exception", step=1))
    first.disarm()
    timeline.begin(0)
    with pytest.raises(RuntimeError):
        timeline.begin(1)
    first.disarm()
    timeline.begin(2)
    assert recorded == [-1, 0, 1, 2]


def test_a_backward_pass_after_closing_takes_no_more_sums(agent: AgentServer, launched: RankContext) -> None:
    model = torch.nn.Linear(2, 2)
    with holdfast_hooks.attach() as hooks:
        hooks.watch_gradients({"model": model})
        loss = model(torch.ones(1, 2)).sum()
        watch = hooks._sidecar._gradients  # type: ignore[union-attr]
    loss.backward()
    assert watch is not None and watch.take() is None
    hooks.watch_gradients({"model": model})
    assert not model._forward_hooks


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_slots_are_unmapped_after_closing_and_stay_after_an_error(
    agent: AgentServer, launch: Launch, make_slots: Any, error: type[Exception] | None
) -> None:
    launch(snapshot_every=1)
    agent.slots = make_slots()
    with (
        contextlib.suppress(ZeroDivisionError),
        holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks,
    ):
        for step in hooks.steps(until=10):
            wait_for_slots(hooks)
            if step == 2:
                if error is not None:
                    raise error
                break
    is_mapped = str(agent.slots[0]) in Path("/proc/self/maps").read_text()
    assert is_mapped == (error is not None)
    hooks.close()
