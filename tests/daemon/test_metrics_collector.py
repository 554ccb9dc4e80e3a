from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from dashboards.catalogue import CATALOGUE, differences
from holdfast_base.redis_client import connect
from holdfast_core.model import Replication
from holdfast_daemon.clock import Clock
from holdfast_daemon.leadership.run_shell import RunShell
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_daemon.metrics import run_families, self_families
from holdfast_daemon.run_metrics import DaemonCollector
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_DATA, LoggedNumber
from holdfast_proto.vocabulary import TIME_USES
from tests.support.core_world import World
from tests.support.exposition import samples
from tests.support.run_keys import write_key
from tests.support.shells import options


def shell_of(folder: Path, world: World, *, leads: bool) -> RunShell:
    """Return a shell that holds a world's state."""
    url = f"unix://{folder}/no-store.sock"
    write_key(folder, world.spec.run)
    shell = RunShell(connect(url), world.spec.run, options(folder, url), Clock(), TickMetrics(CollectorRegistry()))
    shell.state, shell.leadership.leads, shell.store_up = world.state, leads, True
    return shell


class WorldClock(Clock):
    """Shows the time of a world."""

    def __init__(self, now_unix_s: float) -> None:
        self._now_unix_s = now_unix_s

    def now(self) -> float:
        return self._now_unix_s


def scrape(shells: Mapping[str, RunShell], now_unix_s: float = 1_000_100.0) -> str:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(DaemonCollector(shells, WorldClock(now_unix_s)))
    ticks = TickMetrics(registry)
    for duration_s in (0.0004, 0.02, 7.0):
        ticks.observe(duration_s)
    return generate_latest(registry).decode()


def led(folder: Path, world: World) -> str:
    """Return what the leader of a world's run exports."""
    return scrape({"r": shell_of(folder, world, leads=True)})


def open_kinds(folder: Path, world: World) -> list[str]:
    text = led(folder, world)
    return [kind for (kind,), value in samples(text, "holdfast_incident_open", "kind").items() if value]


def running(mode: "store.Mode" = store.MODE_ACT) -> World:
    world = World(mode=mode)
    world.until("starting")
    world.tick()
    world.train(5)
    return world


@pytest.fixture
def world() -> World:
    """A run that has lost rank 3 to SIGKILL, restarted and trained on."""
    world = running()
    world.end(3, signal=9)
    world.until("starting")
    world.tick()
    world.train(2)
    return world


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "standby"])
async def test_what_is_exported_is_what_the_catalogue_says(folder: Path, world: World, leads: bool) -> None:
    assert differences("daemon", scrape({"r": shell_of(folder, world, leads=leads)})) == []


async def test_a_daemon_without_runs_exports_all_its_families(folder: Path) -> None:
    assert differences("daemon", scrape({})) == []


WITHOUT_VALUES_FROM_THE_START = (
    "holdfast_run_info",
    "holdfast_recovery_duration_seconds",
    "holdfast_notifications_total",  # this run has no channels
)


async def test_messages_to_people_are_counted_by_channel_and_outcome(folder: Path) -> None:
    world = World()
    world.tick()
    shell = shell_of(folder, world, leads=True)
    assert shell.state is not None
    shell.state.spec.notify.channels.add(name="pager", slack=store.UrlFile(path="/nowhere"))
    shell.notifier.see(shell.state, 1.0)
    text = scrape({"r": shell})
    outcomes = samples(text, "holdfast_notifications_total", "channel", "outcome")
    assert outcomes == {("pager", outcome): 0 for outcome in ("sent", "refused", "gave_up", "dropped")}
    assert samples(text, "holdfast_notification_attempts_total", "channel") == {("pager",): 0}


async def test_a_label_with_a_fixed_set_shows_each_value_from_the_start(folder: Path) -> None:
    world = World()
    world.tick()
    text = led(folder, world)
    for family in CATALOGUE["daemon"]:
        for label, values in family.values.items():
            if family.name not in WITHOUT_VALUES_FROM_THE_START:
                shown = {value for (value,) in samples(text, family.series_names()[0], label)}
                assert shown == set(values), family.name


async def test_series_of_a_run_come_from_its_leader_alone(folder: Path, world: World) -> None:
    text = scrape({"r": shell_of(folder, world, leads=False)})
    exported = {name for family in run_families.FAMILIES for name in family.series_names() if samples(text, name)}
    assert exported == set()
    assert all(samples(text, name) for family in self_families.FAMILIES for name in family.series_names())
    assert samples(text, "holdfast_coordinator_leader", "run") == {("r",): 0}


async def test_a_restart_shows_in_the_leaders_numbers(folder: Path, world: World) -> None:
    text = led(folder, world)
    for name, labels, shown in (
        ("coordinator_leader", ["run"], {("r",): 1}),
        ("run_generation", [], {(): 2}),
        ("run_world_size", [], {(): 4}),
        ("run_restarts_total", ["reason"], {("dead_rank",): 1}),
        ("incidents_total", ["kind"], {("dead_rank",): 1}),
        ("incident_open", ["kind"], {}),
        ("run_state", ["state"], {("running",): 1}),
        ("ranks", ["state"], {("running",): 4}),
        ("detection_latency_seconds_count", [], {(): 1}),
        ("recovery_duration_seconds_count", ["stage"], {("total",): 1}),
        ("loss", [], {(): 2.0}),
    ):
        assert {at: value for at, value in samples(text, f"holdfast_{name}", *labels).items() if value} == shown, name
    assert samples(text, "holdfast_lost_seconds_total", "cause")[("dead_rank",)] > 0


async def test_the_use_of_time_shows_and_its_counter_never_decreases(folder: Path, world: World) -> None:
    shells = {"r": shell_of(folder, world, leads=True)}
    text = scrape(shells, world.now)
    assert set(samples(text, "holdfast_run_time_seconds_total", "use")) == {(use,) for use in TIME_USES}
    productive_s = samples(text, "holdfast_run_time_seconds_total", "use")[("productive",)]
    [ratio] = samples(text, "holdfast_goodput_ratio", "run").values()
    wall_s = world.now - world.state.record.time_use.since_unix_s
    assert 0.0 < ratio == pytest.approx(productive_s / wall_s)
    later = scrape(shells, world.now + 0.5)
    assert samples(later, "holdfast_run_time_seconds_total", "use")[("productive",)] == productive_s
    [later_ratio] = samples(later, "holdfast_goodput_ratio", "run").values()
    assert later_ratio == pytest.approx((productive_s + 0.5) / (wall_s + 0.5))  # its ranks were seen to train


async def test_the_trainers_numbers_show_as_soon_as_they_are_reported(folder: Path, world: World) -> None:
    shells = {"r": shell_of(folder, world, leads=True)}
    gauges = ("update_norm", "loss_scale", "balance_loss", "mfu_ratio", "pipeline_bubble_ratio", "replay_seconds")
    assert [samples(scrape(shells), f"holdfast_{name}") for name in gauges] == [{}] * 6
    summary = store.StepSummary(
        step=world.rank(0).progress.step,
        generation=world.state.record.generation,
        update_norm=0.125,
        loss_scale=1024.0,
        balance_loss=store.Mean(sum=3.0, count=2),
        mfu=store.Mean(sum=1.0, count=2),
        pipeline_bubble=store.Mean(sum=0.25, count=1),
        replay=store.ReplaySummary(duration_s=2.5),
        dropped_tokens=7,
        overflow=True,
        samples=[store.SamplesUsed(dp=dp, rank=dp, fingerprint=b"the same") for dp in (0, 1)],
    )
    logged = store.NumbersLogged(numbers=[LoggedNumber(name="rewards/chosen", value=0.25, step=3)])
    world.events.append(store.Event(node="node0", step_summary=summary))
    world.events.append(store.Event(node="node0", generation=summary.generation, numbers_logged=logged))
    world.tick()
    text = led(folder, world)
    shown = [samples(text, f"holdfast_{name}")[()] for name in gauges]
    assert shown == [0.125, 1024.0, 1.5, 0.5, 0.25, 2.5]
    assert samples(text, "holdfast_dropped_tokens_total") == {(): 7}
    assert samples(text, "holdfast_logged_number", "name") == {("rewards/chosen",): 0.25}
    assert samples(text, "holdfast_skipped_steps_total", "reason") == {("overflow",): 1}
    assert samples(text, "holdfast_duplicate_steps_total") == {(): 1}
    assert samples(text, "holdfast_incidents_total", "kind")[("duplicate_samples",)] == 1


async def test_an_open_incident_shows_until_the_run_trains_again(folder: Path) -> None:
    world = running()
    world.obeys = False
    world.end(3, signal=9)
    world.tick()
    assert open_kinds(folder, world) == ["dead_rank"]
    assert samples(led(folder, world), "holdfast_ranks", "state")[("exited",)] == 1


async def test_a_lost_rank_is_an_open_incident_in_mode_observe_until_the_ranks_are_started_again(folder: Path) -> None:
    world = running(mode=store.MODE_OBSERVE)
    assert open_kinds(folder, world) == []
    world.end(3, signal=9)
    world.stand(2.0)
    assert open_kinds(folder, world) == ["dead_rank"]
    world.lose_leader()
    world.tick()
    assert open_kinds(folder, world) == ["dead_rank"]
    world.node_states["node0"].ranks[3].ClearField("exit")
    world.node_states["node0"].ranks[3].life = store.LIFE_RUNNING
    world.tick()
    assert open_kinds(folder, world) == []


async def test_ranks_that_train_on_without_a_lost_rank_leave_no_incident_open(folder: Path) -> None:
    world = running(mode=store.MODE_OBSERVE)
    world.end(3, signal=9)
    world.stand(2.0)
    world.rank(0).stalled_s = 0.0
    world.tick()
    assert [incident.verdict.kind for incident in world.incidents] == [store.VERDICT_KIND_DEAD_RANK]
    assert open_kinds(folder, world) == []


@pytest.mark.parametrize("mode", [store.MODE_ACT, store.MODE_OBSERVE], ids=["act", "observe"])
async def test_steps_that_wait_for_data_neither_stop_nor_restart_the_run(folder: Path, mode: "store.Mode") -> None:
    world = running(mode=mode)
    for _ in range(120):
        world.spent_s = {PHASE_DATA: 0.5}
        world.train(tick_s=0.8)
    text = led(folder, world)
    assert samples(text, "holdfast_incidents_total", "kind")[("data_stall",)] == 1
    assert samples(text, "holdfast_slow_data_total") == {(): 1}
    assert samples(text, "holdfast_run_generation") == {(): 1}
    assert open_kinds(folder, world) == []


async def test_data_that_never_comes_is_not_counted_as_slow(folder: Path) -> None:
    world = running()
    world.hang(3)
    world.rank(3).progress.phase = PHASE_DATA
    world.stand(3.0)
    text = led(folder, world)
    assert open_kinds(folder, world) == ["data_stall"]
    assert samples(text, "holdfast_slow_data_total") == {(): 0}


@pytest.mark.parametrize(
    ("every", "every_s", "expected_s"),
    [(0, 0.0, 0.0), (10, 0.0, 3.0), (0, 600.0, 600.0), (10, 600.0, 3.0), (10, 2.0, 2.0)],
)
async def test_the_time_between_checkpoints_is_the_shorter_of_steps_and_minutes(
    folder: Path, every: int, every_s: float, expected_s: float
) -> None:
    world = running()
    world.state.spec.checkpoint_every, world.state.spec.checkpoint_every_s = every, every_s
    text = led(folder, world)
    assert samples(text, "holdfast_run_checkpoint_interval_seconds")[()] == pytest.approx(expected_s)


async def test_histograms_of_latencies_are_cumulative(folder: Path, world: World) -> None:
    text = led(folder, world)
    for name, labels in (("detection_latency_seconds", ("run",)), ("recovery_duration_seconds", ("run", "stage"))):
        buckets = list(samples(text, f"holdfast_{name}_bucket", *labels, "le").values())
        assert (buckets, buckets[-1]) == (sorted(buckets), 1)


async def test_ticks_are_timed_and_slow_ones_counted(folder: Path) -> None:
    text = scrape({})
    assert samples(text, "holdfast_coordinator_tick_duration_seconds_count") == {(): 3}
    assert samples(text, "holdfast_coordinator_slow_ticks_total") == {(): 1}


async def test_an_unreachable_store_shows(folder: Path, world: World) -> None:
    shell = shell_of(folder, world, leads=True)
    shell.counters.operations, shell.counters.failures, shell.store_up = 10, 3, False
    text = scrape({"r": shell})
    assert samples(text, "holdfast_store_up") == {(): 0}
    assert samples(text, "holdfast_store_operations_total") == {(): 10}
    assert samples(text, "holdfast_store_failures_total") == {(): 3}


def test_the_newest_replica_snapshot_has_no_sample_while_there_is_none(tmp_path: Path) -> None:
    world = running()
    assert samples(led(tmp_path, world), "holdfast_replica_step") == {}
    made = Replication(step=9, generation=1, began_unix_s=0.0, sent_unix_s=0.0, looked_unix_s=0.0, complete_step=4)
    world.state = replace(world.state, replication=made)
    assert list(samples(led(tmp_path, world), "holdfast_replica_step").values()) == [4.0]


def test_nodes_that_should_not_train_are_counted_if_they_are_here(tmp_path: Path) -> None:
    world = running()
    assert samples(led(tmp_path, world), "holdfast_nodes_quarantined") == {(): 0}
    for name in (world.state.record.nodes[0], "absent"):
        world.state.record.node_histories.add(node=name, quarantine="no space left")
    assert samples(led(tmp_path, world), "holdfast_nodes_quarantined") == {(): 1}
