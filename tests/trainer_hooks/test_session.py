import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

import holdfast_hooks
from holdfast_hooks import Phase, sidecar
from holdfast_hooks.session import link
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_proto import black_box
from holdfast_proto.rank_context import RankContext
from holdfast_proto.snapshot import Slot
from holdfast_proto.v1.session_pb2 import CaptureEvidence, RankCommand, SnapshotAt, StopAt
from holdfast_proto.v1.session_pb2_grpc import RankAgentStub

pytestmark = pytest.mark.usefixtures("launched")


def started(hooks: holdfast_hooks.Hooks, count: int) -> Iterator[int]:
    """Return a loop that is in step ``count`` of more."""
    steps = hooks.steps(until=200)
    for _ in range(count + 1):
        next(steps)
    return steps


def in_a_thread(train: Callable[..., None], *arguments: object) -> None:
    training = threading.Thread(target=train, args=arguments)
    training.start()
    training.join()


def test_rank_introduces_itself(agent: Any) -> None:
    with holdfast_hooks.attach(coordinates={"dp": 1, "tp": 0}, device="cpu"):
        (hello,) = agent.wait_until(lambda: agent.of("hello"))
    assert (hello.run, hello.generation, hello.rank, hello.world_size, hello.local_rank) == ("test", 2, 3, 8, 1)
    assert (dict(hello.coordinates), hello.device) == ({"dp": 1, "tp": 0}, "cpu")
    assert hello.training_thread == threading.get_native_id()


def test_a_rank_connects_once_grpc_gets_a_thread(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [RuntimeError("can't start new thread")]

    def stub(channel: grpc.Channel) -> RankAgentStub:
        if refusals:
            raise refusals.pop()
        return RankAgentStub(channel)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(link, "RankAgentStub", stub)
    with holdfast_hooks.attach():
        agent.wait_until(lambda: agent.of("hello"))


def test_a_rank_names_the_thread_that_trains_if_that_is_not_the_main_one(agent: Any) -> None:
    threads: list[int] = []

    def train() -> None:
        threads.append(threading.get_native_id())
        with holdfast_hooks.attach():
            agent.wait_until(lambda: agent.of("hello"))

    in_a_thread(train)
    assert [hello.training_thread for hello in agent.of("hello")] == threads != [threading.get_native_id()]


def test_a_rank_that_attaches_in_one_thread_and_trains_in_another_says_so(agent: Any) -> None:
    threads: list[int] = []
    with holdfast_hooks.attach() as hooks:

        def train() -> None:
            threads.append(threading.get_native_id())
            for _ in hooks.steps(until=2):
                pass
            agent.wait_until(lambda: agent.steps)

        in_a_thread(train)
    assert [hello.training_thread for hello in agent.of("hello")] == [threading.get_native_id()]
    assert agent.of("report")[-1].training_thread == threads[0]


def test_a_thread_that_takes_over_the_training_is_followed(agent: Any) -> None:
    threads: list[int] = []
    with holdfast_hooks.attach() as hooks:
        hooks.restore()

        def train(start: int) -> None:
            threads.append(threading.get_native_id())
            for _ in hooks.steps(until=start + 2, start=start):
                pass
            agent.wait_until(lambda: agent.of("report") and agent.of("report")[-1].training_thread == threads[-1])

        def step() -> None:
            threads.append(threading.get_native_id())
            hooks.begin_step()
            hooks.end_step()
            agent.wait_until(lambda: agent.of("report")[-1].training_thread == threads[-1])

        in_a_thread(train, 0)
        in_a_thread(train, 2)
        in_a_thread(step)
    assert len(threads) == 3


def test_numbers_of_the_script_are_reported_with_the_step_in_which_they_were_logged(agent: Any) -> None:
    with holdfast_hooks.attach() as hooks:
        hooks.log({"before": 1})
        for step in hooks.steps(until=3):
            hooks.log({"reward": torch.tensor(step / 2), "text": "no number"})
        hooks.log({"train_loss": 0.5})
    hooks.log({"late": 1.0})
    newest = {number.name: number for report in agent.of("report") for number in report.logged}
    found = {name: (number.value, number.step) for name, number in newest.items()}
    assert found == {"before": (1.0, -1), "reward": (1.0, 2), "train_loss": (0.5, 2)}


def test_a_number_that_is_reported_after_its_step_disturbs_no_report(agent: Any) -> None:
    with holdfast_hooks.attach() as hooks:
        for step in range(300):
            hooks.begin_step(step)
            hooks.report(loss=1.0)
            hooks.end_step()
            hooks.report(validation_loss=2.0)
            hooks.report(mfu=0.5)
    assert [record.step for record in agent.steps] == list(range(300))


def test_reports_hold_the_time_outside_of_steps(agent: Any) -> None:
    with holdfast_hooks.attach() as hooks:
        for _ in hooks.steps(until=2):
            pass
        agent.wait_until(lambda: agent.of("report") and agent.of("report")[-1].outside_s[Phase.INIT] > 0)
        hooks.enter(Phase.EVAL)
    final = agent.of("report")[-1]
    assert {Phase.INIT, Phase.IDLE, Phase.EVAL} <= final.outside_s.keys()


def test_every_step_is_reported_once_and_in_order(agent: Any) -> None:
    with holdfast_hooks.attach() as hooks:
        for step in hooks.steps(until=700):
            hooks.enter(Phase.DATA)
            hooks.enter(Phase.OPTIMIZER)
            hooks.report(loss=float(step), tokens=10)
            hooks.report(grad_norm=torch.tensor(0.5), learning_rate=0.1, tokens=5)
    assert [record.step for record in agent.steps] == list(range(700))
    record = agent.steps[7]
    assert (record.loss, record.grad_norm, record.learning_rate, record.tokens) == (7.0, 0.5, 0.1, 15)
    assert not record.HasField("validation_loss")
    assert set(record.phase_s) == {Phase.FORWARD_BACKWARD, Phase.DATA, Phase.OPTIMIZER}
    assert sum(record.phase_s.values()) == pytest.approx(record.duration_s, abs=1e-6)
    final = agent.of("report")[-1]
    assert (final.progress.step, final.progress.phase, final.dropped_total) == (699, Phase.IDLE, 0)
    assert final.memory.allocated_bytes > 1 << 20
    assert final.reporter_cpu_s > 0


def test_every_number_arrives_in_its_own_type_and_what_was_not_reported_is_absent(agent: Any) -> None:
    with holdfast_hooks.attach() as hooks:
        for step in hooks.steps(until=2):
            if step == 0:
                hooks.report(update_norm=0.125, loss_scale=torch.tensor(1024.0), overflow=True, mfu=0.5)
                hooks.report(pipeline_bubble=0.25, balance_loss=torch.tensor(1.5), dropped_tokens=torch.tensor(7))
                hooks.report(dropped_tokens=9, samples=b"0123456789abcdef")
    reported, silent = agent.steps
    assert (reported.update_norm, reported.loss_scale, reported.mfu) == (0.125, 1024.0, 0.5)
    assert (reported.pipeline_bubble, reported.balance_loss) == (0.25, 1.5)
    assert (reported.overflow, reported.dropped_tokens, reported.samples) == (True, 9, b"0123456789abcdef")
    assert {field.name for field, _ in silent.ListFields()} == {"step", "ended_unix_s", "duration_s", "phase_s"}


def test_a_step_is_one_entry_of_the_backlog_however_much_is_reported(
    agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast_hooks.attach() as hooks:
        assert hooks._sidecar is not None
        appended: list[Any] = []
        monkeypatch.setattr(hooks._sidecar._steps, "append", appended.append)
        for _ in hooks.steps(until=3):
            for _ in range(4):
                hooks.report(loss=1.0, update_norm=0.1, mfu=0.4, dropped_tokens=1, samples=b"samples0")
    assert [sample[0] for sample in appended] == [0, 1, 2]


class Flag:
    """A stand-in for the event that shows when a GPU's number has been copied."""

    def __init__(self) -> None:
        self.is_set = False

    def query(self) -> bool:
        return self.is_set


def test_numbers_that_a_gpu_still_owes_hold_their_step_back_and_nothing_waits(agent: Any) -> None:
    arrived: Any = Flag()
    with holdfast_hooks.attach() as hooks:
        for step in hooks.steps(until=3):
            if step == 1:
                hooks._timeline.values["overflow"] = DeferredNumbers((torch.tensor(True),), arrived)
                hooks._timeline.values["dropped_tokens"] = DeferredNumbers((torch.tensor(7),), arrived)
            if step == 2:
                break
        reports = len(agent.of("report"))
        agent.wait_until(lambda: len(agent.of("report")) > reports + 2)
        assert [record.step for record in agent.steps] == [0]
        arrived.is_set = True
        agent.wait_until(lambda: len(agent.steps) == 2)
        assert (agent.steps[1].overflow, agent.steps[1].dropped_tokens) == (True, 7)


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf")])
def test_a_count_that_is_none_is_left_out_and_its_step_reported(
    agent: Any, caplog: pytest.LogCaptureFixture, count: Any
) -> None:
    with holdfast_hooks.attach() as hooks:
        for _ in hooks.steps(until=2):
            hooks.report(loss=2.0, dropped_tokens=count)
    assert [(record.loss, record.HasField("dropped_tokens")) for record in agent.steps] == [(2.0, False)] * 2
    (line,) = [record.message for record in caplog.records if "dropped_tokens" in record.message]
    assert line.startswith("dropped_tokens is not reported: ")


def test_report_shows_where_the_training_thread_is_while_it_stays_there(agent: Any, launched: RankContext) -> None:
    with holdfast_hooks.attach() as hooks:
        agent.wait_until(lambda: [r for r in agent.of("report") if r.progress.phase == Phase.INIT])
        _steps = started(hooks, 1)
        hooks.enter(Phase.EVAL)
        agent.wait_until(
            lambda: [r for r in agent.of("report") if (r.progress.step, r.progress.phase) == (1, Phase.EVAL)]
        )
        contents = black_box.read(Path(launched.black_box))
        assert (contents.rank, contents.step, contents.phase) == (3, 1, Phase.EVAL)


def test_modules_of_the_first_steps_are_reported_once(agent: Any) -> None:
    with holdfast_hooks.attach() as hooks:
        for step in hooks.steps(until=4):
            if step == 1:
                import xmlrpc.client

                import torch.utils.benchmark

                assert xmlrpc.client and torch.utils.benchmark
            if step == 3:
                agent.wait_until(lambda: any(report.modules for report in agent.of("report")))
    (reported,) = [list(report.modules) for report in agent.of("report") if report.modules]
    assert "torch.utils.benchmark" in reported and "xmlrpc.client" not in reported
    assert reported == sorted(reported)


def test_restarted_agent_gets_hello_again_and_misses_no_step(agent: Any) -> None:
    with holdfast_hooks.attach() as hooks:
        steps = started(hooks, 10)
        agent.wait_until(lambda: len(agent.steps) == 10)
        agent.stop()
        for _ in range(10):
            next(steps)
        agent.start()
        agent.wait_until(lambda: len(agent.of("hello")) == 2 and len({s.step for s in agent.steps}) == 20)
        for _ in steps:
            pass
    seen = [record.step for record in agent.steps]
    assert sorted(set(seen)) == list(range(200))
    assert agent.of("report")[-1].dropped_total == 0


def test_backlog_is_bounded_and_drops_the_oldest_counted(
    agent: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sidecar, "BACKLOG_STEPS", 16)
    agent.stop()
    with holdfast_hooks.attach() as hooks:
        _steps = started(hooks, 100)
        agent.start()
        agent.wait_until(lambda: agent.steps)
    assert [record.step for record in agent.steps] == list(range(84, 100))
    assert agent.of("report")[-1].dropped_total == 84
    assert len([record for record in caplog.records if "no session with the agent" in record.message]) <= 1


def test_stop_ends_the_loop_after_its_step_with_a_checkpoint(agent: Any, make_slots: Any) -> None:
    paths = make_slots()
    done = []
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
        for step in hooks.steps(until=1000):
            done.append(step)
            if step == 0:
                agent.wait_until(lambda: agent.of("hello"))
                agent.grant(paths)
                agent.command(RankCommand(id=5, generation=2, stop_at=StopAt(step=4)))
                agent.wait_until(lambda: agent.of("ack"))
        assert list(hooks.steps(until=1000)) == []
    assert done == [0, 1, 2, 3, 4]
    assert [(ack.id, ack.accepted) for ack in agent.of("ack")] == [(5, True)]
    (taken,) = [snapshot for report in agent.of("report") for snapshot in report.snapshots]
    assert (taken.step, taken.persist) == (4, True)
    with Slot(paths[taken.slot]) as slot:
        assert (slot.header.step, slot.header.rank, slot.header.generation) == (4, 3, 2)


def test_slots_are_requested_granted_and_filled_on_command(agent: Any, make_slots: Any) -> None:
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
        steps = started(hooks, 1)
        (request,) = agent.wait_until(lambda: agent.of("slot_request"))
        agent.grant(make_slots(nbytes=request.bytes_per_slot))
        agent.command(RankCommand(id=1, generation=2, snapshot_at=SnapshotAt(step=1)))
        agent.wait_until(lambda: agent.of("ack"))
        next(steps)
        (taken,) = agent.wait_until(lambda: [s for report in agent.of("report") for s in report.snapshots])
    assert (taken.step, taken.persist, taken.replica, taken.stall_s > 0) == (1, True, False, True)
    assert [record.phase_s[Phase.CHECKPOINT] > 0 for record in agent.steps if record.step == 1] == [True]


def test_a_replica_is_a_command_of_its_own(agent: Any, make_slots: Any) -> None:
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
        steps = started(hooks, 1)
        (request,) = agent.wait_until(lambda: agent.of("slot_request"))
        agent.grant(make_slots(nbytes=request.bytes_per_slot))
        agent.command(RankCommand(id=1, generation=2, snapshot_at=SnapshotAt(step=1, replica=True)))
        agent.command(RankCommand(id=2, generation=2, snapshot_at=SnapshotAt(step=2)))
        agent.wait_until(lambda: len(agent.of("ack")) == 2)
        next(steps)
        next(steps)
        taken = agent.wait_until(lambda: found if len(found := snapshots_of(agent)) == 2 else [])
    assert [(one.step, one.persist, one.replica) for one in taken] == [(1, False, True), (2, True, False)]


def test_with_slots_on_disk_a_rank_refuses_replicas_and_no_checkpoints(agent: Any, make_slots: Any) -> None:
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
        _steps = started(hooks, 1)
        (request,) = agent.wait_until(lambda: agent.of("slot_request"))
        agent.grant(make_slots(nbytes=request.bytes_per_slot), on_disk=True)
        for number, replica in enumerate((True, False)):
            agent.command(RankCommand(id=number, generation=2, snapshot_at=SnapshotAt(step=50, replica=replica)))
        acks = agent.wait_until(lambda: found if len(found := agent.of("ack")) == 2 else [])
    assert [(ack.accepted, ack.detail) for ack in acks] == [(False, "the slots of this rank are on disk"), (True, "")]


def snapshots_of(agent: Any) -> list[Any]:
    return [snapshot for report in agent.of("report") for snapshot in report.snapshots]


def test_unanswered_slot_request_is_repeated_to_the_next_agent(agent: Any) -> None:
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)}) as hooks:
        _steps = started(hooks, 1)
        agent.wait_until(lambda: len(agent.of("slot_request")) == 1)
        agent.stop()
        agent.start()
        agent.wait_until(lambda: len(agent.of("slot_request")) == 2)


@pytest.mark.parametrize(
    ("has_state", "command", "detail"),
    [
        (True, {"snapshot_at": SnapshotAt(step=1)}, "step 1 has already ended"),
        (True, {"stop_at": StopAt(step=0)}, "step 0 has already ended"),
        (True, {"stop_at": StopAt(step=9), "generation": 1}, "this rank is of generation 2, the command of 1"),
        (True, {"capture_evidence": CaptureEvidence(directory="/x")}, "this rank has no process group"),
        (False, {"snapshot_at": SnapshotAt(step=9)}, "this rank was attached without a state"),
    ],
    ids=["late snapshot", "late stop", "old generation", "no process group", "no state"],
)
def test_command_that_cannot_be_done_is_refused_with_the_reason(
    agent: Any, has_state: bool, command: dict[str, Any], detail: str
) -> None:
    with holdfast_hooks.attach(state={"model": torch.nn.Linear(2, 2)} if has_state else None) as hooks:
        steps = started(hooks, 2)
        agent.wait_until(lambda: agent.of("report"))
        agent.command(RankCommand(**{"generation": 2, **command}))
        (ack,) = agent.wait_until(lambda: agent.of("ack"))
        assert (ack.accepted, ack.detail) == (False, detail)
        assert next(steps) == 3


def test_exception_that_ends_the_rank_is_its_last_words(agent: Any, launched: RankContext) -> None:
    with pytest.raises(ZeroDivisionError), holdfast_hooks.attach() as hooks:
        for _ in hooks.steps(until=3):
            agent.wait_until(lambda: agent.of("hello"))
            raise ZeroDivisionError("on purpose")
    report = agent.of("report")[-1]
    assert "ZeroDivisionError: on purpose" in report.last_words
    assert black_box.read(Path(launched.black_box)).last_words == report.last_words


def test_closing_without_an_agent_is_quick_enough_and_silent() -> None:
    hooks = holdfast_hooks.attach()
    assert list(hooks.steps(until=3)) == [0, 1, 2]
    hooks.close()
    hooks.close()
