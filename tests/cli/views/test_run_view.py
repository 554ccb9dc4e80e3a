import io
import math
from typing import Any

import pytest
from rich.console import Console

from holdfast_cli.views.conditions import Condition, condition
from holdfast_cli.views.display import HEARTBEAT_S, LineDisplay, LiveDisplay, changes, display_for
from holdfast_cli.views.phrases import progress_line
from holdfast_cli.views.run_view import Surroundings, phase_style, progress_text, render
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_EVAL, LoggedNumber
from holdfast_proto.v1.control_pb2 import RANK_HEALTH_STALLED, RANK_HEALTH_WAITING, RankView, RunStatus
from holdfast_proto.v1.fault_pb2 import Fault
from tests.support.statuses import healthy, killed, resumed, stopped, with_incident


def draw(status: RunStatus, width: int = 100, **surroundings: Any) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(render(status, Surroundings(**surroundings)))
    return console.export_text()


def line_with(text: str, part: str) -> str:
    return next(line for line in text.splitlines() if part in line)


def test_the_header_shows_state_step_loss_and_throughput() -> None:
    text = draw(healthy(), title="first of two", total_steps=120)
    assert "first of two" in text and "llama  running  generation 2" in text
    assert "42 of 120 steps · loss 2.3457 · 12,346 tokens/s" in text
    assert "snapshot of step 41 · checkpoint of step 39 · restarts 0 · incidents 0 · loss spikes 0" in text


def test_the_header_shows_the_newest_replica_snapshot_if_there_is_one() -> None:
    status = healthy()
    status.newest_replica = 39
    assert "snapshot of step 41 · replica snapshot of step 39 · checkpoint of step 39" in draw(status)


def test_the_header_shows_that_nodes_are_missing_and_what_to_do() -> None:
    status = healthy()
    status.nodes_note = "trains with 2 of 3 nodes (4 of 6 ranks) since incident 0001-lost-node"
    status.nodes_advice = "start `holdfast agent` on another node"
    text = draw(status)
    assert status.nodes_note in text and status.nodes_advice in text


def test_the_header_shows_which_data_are_left_out() -> None:
    status = healthy()
    status.left_out.add(first=20, steps=16)
    status.left_out.add(first=60, steps=1)
    assert "left out: data of steps 20-35,60" in draw(status)


def test_the_header_shows_the_goodput_and_the_two_largest_losses() -> None:
    status = healthy()
    assert "goodput" not in draw(status)
    status.wall_s = 2000.0
    status.time_use_s.update({"productive": 1800.0, "start_up": 60.0, "restart": 100.0, "repeated_steps": 40.0})
    assert "goodput 90.0% of 2,000 s · lost most: restart 100 s, start up 60 s" in draw(status)
    status.time_use_s.update({"productive": 1999.8, "start_up": 0.2, "restart": 0.0, "repeated_steps": 0.0})
    assert line_with(draw(status), "goodput").split("│")[1].strip() == "goodput 100.0% of 2,000 s"


def with_fields(status: RunStatus, **fields: Any) -> RunStatus:
    for name, value in fields.items():
        setattr(status, name, value)
    return status


@pytest.mark.parametrize(
    ("status", "total", "expected"),
    [
        (with_fields(healthy(), newest_step=118), 120, "119 of 120 steps · loss"),
        (with_fields(healthy(), newest_step=119), 120, "120 of 120 steps · loss"),
        (with_fields(healthy(), newest_step=0), None, "1 step · loss"),
        (resumed(39, newest=39, now=-1), None, "resuming at step 40 · loss"),
        (resumed(39, newest=39, now=40), None, "resumed at step 40 · loss"),
        (resumed(39, newest=47, now=48), None, "48 steps · resumed at step 40 · loss"),
        (resumed(39, newest=47, now=48), 120, "48 of 120 steps · resumed at step 40 · loss"),
        (resumed(29, newest=30, now=31), None, "31 steps · resumed at step 30 · loss"),
        # The last step is completed: the ranks are in no later one.
        (resumed(39, newest=119, now=119), None, "120 steps · resumed at step 40 · loss"),
        (resumed(39, newest=119, now=120), 120, "120 of 120 steps · resumed at step 40 · loss"),
        (
            with_fields(resumed(9, newest=9, now=-1), phase=store.RUN_PHASE_FINISHED),
            None,
            "no step after step 9, from which it resumed · loss",
        ),
    ],
)
def test_the_progress_counts_completed_steps_and_says_where_a_run_continued(
    status: RunStatus, total: int | None, expected: str
) -> None:
    assert progress_line(status, total).startswith(expected)


@pytest.mark.parametrize("phase", [store.RUN_PHASE_RUNNING, store.RUN_PHASE_FINISHED])
def test_a_run_whose_loss_is_not_finite_is_not_green_and_says_since_when(phase: "store.RunPhase") -> None:
    status = healthy()
    assert phase_style(status) == "bold green"
    status.phase, status.loss, status.nonfinite_since = phase, math.nan, 37
    assert "42 steps · loss not finite since step 37 · 12,346 tokens/s" in draw(status)
    assert phase_style(status) == "bold red"
    assert [str(span.style) for span in progress_text(status, None).spans] == ["bold red"]


def test_the_time_left_stands_next_to_the_steps_until_the_run_has_ended() -> None:
    status = healthy()
    status.planned_steps, status.time_left_s = 500, 229.0
    assert "42 of 500 steps · about 3 min 49 s left · loss 2.3457" in draw(status)
    status.phase = store.RUN_PHASE_FINISHED
    assert "left" not in draw(status)


def test_the_header_has_gradient_norm_learning_rate_and_memory() -> None:
    status = healthy()
    assert "gradient norm" not in draw(status)
    status.grad_norm, status.learning_rate = 0.51234, 0.0003
    status.ranks[1].memory_bytes, status.ranks[2].memory_bytes = 3 << 29, 5 << 20
    assert "gradient norm 0.5123 · learning rate 0.0003 · memory up to 1.5 GiB a rank" in draw(status)
    assert line_with(draw(status), "pp0 tp1").split()[-2:] == ["1.5", "GiB"]
    assert line_with(draw(status), "pp1 tp0").split()[-2:] == ["5", "MiB"]


def test_the_header_has_what_the_script_logs_under_its_own_names() -> None:
    status = healthy()
    assert "logged" not in draw(status)
    status.logged.add(name="rewards/chosen", value=0.123456)
    status.logged.add(name="eval_fr_loss", value=math.nan)
    assert "logged: rewards/chosen 0.1235 · eval_fr_loss nan" in draw(status)
    status.logged.extend([LoggedNumber(name=f"n{index}", value=1.0) for index in range(9)])
    lines = " ".join(draw(status).replace("│", " ").split())
    assert "n5 1 · 3 more with --json" in lines and "n6" not in lines


def test_memory_is_left_out_of_a_table_that_would_be_too_wide() -> None:
    status = healthy()
    for rank in status.ranks:
        rank.memory_bytes, rank.stalled_s, rank.health = 1 << 30, 12.0, RANK_HEALTH_STALLED
        rank.node = f"node-{rank.rank % 2}"
    assert "1.0 GiB" in line_with(draw(status, width=100), "pp0 tp1")
    text = draw(status, width=80)
    assert "1.0 GiB" not in line_with(text, "pp0 tp1")
    assert "no progress for 12.0 s" in line_with(text, "pp0 tp1")
    for rank in status.ranks:
        rank.node = "local"
    assert "1.0 GiB" in line_with(draw(status, width=80), "pp0 tp1")


def test_every_rank_is_shown_with_its_place_and_phase() -> None:
    text = draw(healthy())
    assert line_with(text, "pp1 tp0").split() == ["2", "pp1", "tp0", "42", "forward", "backward", "running"]


def test_a_run_without_steps_or_ranks_can_be_drawn() -> None:
    none: dict[str, Any] = dict.fromkeys(("newest_step", "newest_checkpoint", "newest_snapshot"), -1)
    text = draw(RunStatus(run="new", phase=store.RUN_PHASE_STARTING, **none))
    assert "no step yet" in text and "checkpoint none" in text


def test_a_run_that_an_operator_stopped_is_shown_as_stopped() -> None:
    status = healthy()
    status.phase, status.outcome = store.RUN_PHASE_FAILED, "stopped by an operator"
    assert "llama  stopped  generation 2" in draw(status)
    assert next(iter(changes(None, status, 120))).startswith("llama stopped, generation 2")


def test_a_stopped_rank_stands_out_among_those_that_wait_for_it() -> None:
    text = draw(stopped(2))
    assert "stopped for 2.0 s" in line_with(text, "pp1 tp0")
    assert text.count("no progress for 2.0 s") == 3


def test_the_newest_incident_is_shown_with_its_actions_and_its_end() -> None:
    text = draw(with_incident(stopped(2), recovered=True))
    assert "rank 2 is stopped in step 42 [recovered]" in text and "+0.2 s  stop generation 2" in text
    assert "training again 3.5 s after detection, 1 step lost" in text


def test_with_many_ranks_the_odd_ones_come_first_and_the_others_are_counted() -> None:
    text = draw(killed(77, healthy(100)), most_ranks=3)
    rows = [line.split()[0] for line in text.splitlines() if "pp" in line]
    assert rows == ["77", "0", "1"]
    assert "and 97 running" in text


def test_trouble_with_the_sidecar_itself_is_shown() -> None:
    status = healthy()
    status.store_up = False
    text = draw(status, notes=["agent: started again 2 times"])
    assert "Redis is unreachable: training continues" in text and "agent: started again 2 times" in text


def test_conditions_of_ranks() -> None:
    assert condition(RankView(life=store.LIFE_EXITED, exit=store.RankExit(code=0))) is Condition.FINISHED
    assert condition(RankView(life=store.LIFE_EXITED, exit=store.RankExit(code=1))) is Condition.DEAD
    assert condition(RankView(life=store.LIFE_EXITED, exit=store.RankExit())) is Condition.DEAD
    assert condition(RankView(life=store.LIFE_EXITED)) is Condition.ENDED
    assert condition(RankView()) is Condition.STARTING
    slow = healthy().ranks[0]
    slow.stalled_s = 3.0
    assert condition(slow) is Condition.RUNNING, "an older daemon does not judge"
    slow.health = RANK_HEALTH_STALLED
    assert condition(slow) is Condition.STALLED
    slow.health = RANK_HEALTH_WAITING
    assert condition(slow) is Condition.WAITING


def test_lines_contain_only_what_is_new() -> None:
    first = list(changes(None, healthy(), 120))
    assert first[0] == "llama running, generation 2"
    assert list(changes(healthy(), healthy(), 120)) == []
    assert list(changes(healthy(), killed(3), 120)) == ["rank 3 dead: SIGKILL"]
    before, after = with_incident(stopped(2)), with_incident(stopped(2), recovered=True)
    assert list(changes(stopped(2), before, 120)) == [
        "incident i-1: rank 2 is stopped in step 42 [open]",
        "incident i-1: +0.2 s stop generation 2",
    ]
    assert list(changes(before, after, 120)) == [
        "incident i-1: rank 2 is stopped in step 42 [recovered]",
        "incident i-1: training again 3.5 s after detection, 1 step lost",
    ]
    failed = killed(3)  # by Holdfast, with the run
    failed.phase, failed.outcome = store.RUN_PHASE_FAILED, "too many restarts"
    lines = list(changes(healthy(), failed, None))
    assert lines[0] == "llama failed, generation 2: too many restarts"
    assert not any("SIGKILL" in line for line in lines)


def test_an_incident_comes_before_the_restart_that_it_causes_and_ends_after_it() -> None:
    restarting = with_incident(killed(2))
    restarting.phase, restarting.generation = store.RUN_PHASE_STARTING, 3
    lines = list(changes(healthy(), restarting, 120))
    first = [line.partition(":")[0] for line in lines[:4]]
    assert first == ["rank 2 dead", "incident i-1", "incident i-1", "llama starting, generation 3"]
    again = with_incident(healthy(), recovered=True)
    again.generation = 3
    lines = list(changes(restarting, again, 120))
    assert lines[0] == "llama running, generation 3"
    assert lines[-1].startswith("incident i-1: training again")


def test_what_is_not_compared_is_reported_once() -> None:
    sharded = healthy()
    sharded.replicas_note = "silent corruption is not looked for: only one rank reports its parameters"
    assert list(changes(healthy(), sharded, 120)) == [sharded.replicas_note]
    assert list(changes(sharded, sharded, 120)) == []
    sharded_later = healthy()  # another leader does not know it
    assert list(changes(sharded, sharded_later, 120)) == []


def test_a_fault_injected_on_purpose_is_a_line_and_reported_once() -> None:
    harmed = healthy()
    harmed.faults.add(fault=Fault(kind="slow", rank=2), step=41)
    harmed.faults.add(fault=Fault(kind="kill", rank=1, step=60, phase=PHASE_EVAL), step=60)
    harmed.faults.add(fault=Fault(kind="stop", rank=1, step=70), step=70)
    harmed.faults.add(fault=Fault(kind="kill", rank=0, phase=PHASE_EVAL), step=41, waits_for="the phase eval")
    harmed.faults_refused.add(fault=Fault(kind="kill", rank=3), reason="step 4 has already ended")
    assert list(changes(healthy(), harmed, 120)) == [
        "fault injected: slow of rank 2 in step 41",
        "fault armed: kill of rank 1 in step 60 or later, at the start of the phase eval",
        "fault armed: stop of rank 1 in step 70",
        "fault armed: kill of rank 0, waits for the phase eval",
        "fault refused: kill of rank 3: step 4 has already ended",
    ]
    assert list(changes(harmed, harmed, 120)) == []


def test_a_line_is_printed_as_a_sign_of_life() -> None:
    output = io.StringIO()
    with LineDisplay(Console(file=output, width=200)) as display:
        status = healthy()
        display.update(status, Surroundings())
        display.update(status, Surroundings())
        before = output.getvalue()
        status.now_unix_s += HEARTBEAT_S
        display.update(status, Surroundings())
    assert output.getvalue()[len(before) :] == "42 steps · loss 2.3457 · 12,346 tokens/s\n"


def test_a_terminal_is_drawn_on_and_a_pipe_gets_lines() -> None:
    assert isinstance(display_for(Console(file=io.StringIO(), force_terminal=True)), LiveDisplay)
    assert isinstance(display_for(Console(file=io.StringIO())), LineDisplay)


def test_the_last_status_stays_on_the_screen_however_soon_it_came() -> None:
    output = io.StringIO()
    with LiveDisplay(Console(file=output, force_terminal=True, width=120)) as display:
        display.update(healthy(), Surroundings())
        display.update(killed(3), Surroundings())
    assert "dead: SIGKILL" in output.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_an_exception_says_cannot_steer_the_terminal(is_terminal: bool) -> None:
    status = killed(3)
    status.newest_incident.verdict.message = "rank 3 raised \x1b]0;owned\x07\x1b[2Jboom"
    status.newest_incident.state = store.INCIDENT_STATE_OPEN
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, color_system=None, width=200)
    with display_for(console) as display:
        display.update(status, Surroundings())
    shown = output.getvalue()
    assert "boom" in shown and "\x1b]0" not in shown and "\x1b[2J" not in shown


def test_lines_of_ranks_stay_above_the_view_and_cannot_move_the_cursor() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, color_system="standard")
    with LiveDisplay(console) as display:
        display.update(healthy(), Surroundings())
        begun = len(output.getvalue())
        display.say(["[rank 1] \x1b[31mred\x1b[0m \x1b[2J\x1b[Hnot cleared", "[rank 0] " + "x" * 100])
        said = output.getvalue()[begun:]
    assert "[rank 1] \x1b[31mred\x1b[0m" in said and "\x1b[2J" not in said and "\x1b[H" not in said
    assert said.index("x" * 100) < said.index("llama")


def test_lines_of_ranks_are_printed_as_they_are_without_a_terminal() -> None:
    output = io.StringIO()
    with LineDisplay(Console(file=output, width=20)) as display:
        display.say(["[rank 1] [bold]no markup[/bold] and a long line"])
    assert output.getvalue() == "[rank 1] [bold]no markup[/bold] and a long line\n"


def test_the_recorders_of_a_gpu_run_are_shown_and_a_missing_one_too() -> None:
    status = healthy()
    for rank in status.ranks:
        rank.recorders.add(source=common.RECORDER_SOURCE_GENERIC, backend="gloo")
    assert "recorders" not in draw(status)
    for rank in status.ranks:
        rank.recorders.add(source=common.RECORDER_SOURCE_NCCL, backend="nccl")
    ranks = len(status.ranks)
    shown = f"recorders: gloo on {ranks} ranks, nccl on {ranks} ranks"
    assert shown in draw(status)
    assert shown in changes(healthy(), status, None) and shown not in changes(status, status, None)
    status.ranks[0].recorders.add(source=common.RECORDER_SOURCE_NONE, backend="nccl2")
    assert "none for nccl2 (the ranks' logs say what to set) on 1 rank" in draw(status, width=160)


def test_the_own_time_of_ranks_on_gpus_is_shown_with_the_reason_where_it_cannot_be_separated() -> None:
    status = healthy()
    for rank in status.ranks:
        rank.own_time_source = common.OWN_TIME_SOURCE_HOST
    assert "own time" not in draw(status)
    for rank in status.ranks[:3]:
        rank.own_time_source = common.OWN_TIME_SOURCE_EVENTS
    assert "own time: by the training thread on 1 rank, by events on the GPU on 3 ranks" in draw(status)
    status.ranks[3].own_time_source = common.OWN_TIME_SOURCE_NONE
    status.ranks[3].own_time_reason = "it sends messages"
    shown = "own time: by events on the GPU on 3 ranks, cannot be separated from waiting (it sends messages) on 1 rank"
    assert shown in draw(status, width=160)
    assert shown in changes(healthy(), status, None) and shown not in changes(status, status, None)


def test_without_a_terminal_the_own_time_is_one_line_once_all_ranks_know_it() -> None:
    before, status = healthy(), healthy()
    for rank in status.ranks[1:]:
        rank.own_time_source = common.OWN_TIME_SOURCE_EVENTS
    assert not [line for line in changes(before, status, None) if "own time" in line]
    assert "own time: by events on the GPU on 3 ranks" in draw(status)
    later = RunStatus.FromString(status.SerializeToString())
    later.ranks[0].own_time_source = common.OWN_TIME_SOURCE_EVENTS
    assert "own time: by events on the GPU on 4 ranks" in [*changes(status, later, None)]


def test_a_status_with_counted_ranks_looks_as_one_with_all_of_them() -> None:
    whole = healthy()
    first = whole.ranks[0]
    del whole.ranks[:]
    for number in range(100):
        rank = whole.ranks.add()
        rank.CopyFrom(first)
        rank.rank, rank.node, rank.memory_bytes = number, f"node{number // 8}", 1 << 30
        rank.recorders.add(source=common.RECORDER_SOURCE_BACKEND, backend="nccl")
    short = RunStatus()
    short.CopyFrom(whole)
    del short.ranks[64:]
    short.other_ranks.add(count=36, like=whole.ranks[99])
    assert draw(short) == draw(whole)
    assert "and 68 running" in draw(short)
    assert "torch's own for nccl on 100 ranks" in draw(short)
