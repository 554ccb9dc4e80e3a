from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from dashboards.catalogue import CATALOGUE, differences
from holdfast_agent.devices.gpu import Gpu, GpuSample
from holdfast_agent.devices.xids import Xid
from holdfast_agent.node_metrics import AgentCollector
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import (
    OWN_TIME_SOURCE_EVENTS,
    OWN_TIME_SOURCE_NONE,
    PHASE_DATA,
    PHASE_INIT,
    PHASE_OPTIMIZER,
    RECORDER_SOURCE_NCCL,
    GroupProgress,
    Progress,
    Recorder,
)
from tests.support.exposition import samples
from tests.support.nodes import RecordedNode, begin, make_node


def scrape(node: RecordedNode, *, starts_total: int = 0) -> str:
    registry = CollectorRegistry(auto_describe=True)
    parent = node.supervisor().parent
    parent.starts_total = starts_total
    registry.register(AgentCollector(node, node.link, node.checkpoints, parent))
    return generate_latest(registry).decode()


async def busy_node(folder: Path) -> RecordedNode:
    """A node whose first rank has reported a step and whose second was killed."""
    node = make_node(folder)
    begin(node, 1, {0: 1, 1: 1})
    node.ranks[0].welcome(session.Hello(device="cuda:1"))
    group = GroupProgress(group="5", description="mesh_tp", enqueued=8, completed=7)
    phase_s: dict[int, float] = {PHASE_DATA: 0.1, PHASE_OPTIMIZER: 0.2}
    step = session.StepRecord(step=5, duration_s=0.3, ended_unix_s=9.0, phase_s=phase_s, pipeline_bubble=0.25)
    report = session.Report(
        progress=Progress(step=6, groups=[group, GroupProgress(group="0", enqueued=3, completed=3)]),
        steps=[step],
        snapshots=[session.SnapshotTaken(step=5, stall_s=0.02)],
        memory=session.MemoryStatus(allocated_bytes=100, reserved_bytes=200, alloc_retries=1, ooms=2),
        dropped_total=4,
        snapshots_skipped_total=1,
        reporter_cpu_s=0.5,
        outside_s={PHASE_INIT: 4.0, PHASE_DATA: 1.0},
        device_uuid="GPU-1",
        recorders=[Recorder(source=RECORDER_SOURCE_NCCL, backend="nccl")],
        own_time_source=OWN_TIME_SOURCE_NONE,
        own_time_reason="it sends messages",
    )
    await node.messages.receive(node.ranks[0], session.RankMessage(report=report))
    node.ranks[1].finish(store.RankExit(signal=9), None)
    hot = Gpu(5, "GPU-1", "0000:c1:00.0", readings={"temperature_celsius": 91.0}, throttles=("hw_thermal_slowdown",))
    unused = Gpu(6, "GPU-2", "0000:c2:00.0", readings={"temperature_celsius": 30.0})
    node.devices.take(GpuSample((hot, unused)))
    node.devices.take_xid(Xid(63), "GPU-1")
    return node


async def test_what_is_exported_is_what_the_catalogue_says(folder: Path) -> None:
    text = scrape(await busy_node(folder))
    assert differences("agent", text) == []
    assert '=""' not in text, "no label is empty"
    assert differences("agent", scrape(make_node(folder / "without ranks"))) == []


async def test_ranks_show_what_they_have_reported(folder: Path) -> None:
    text = scrape(await busy_node(folder), starts_total=7)
    assert samples(text, "holdfast_warm_parent_starts_total") == {(): 7}
    assert samples(text, "holdfast_rank_up", "rank") == {("0",): 1, ("1",): 0}
    assert samples(text, "holdfast_rank_step", "rank") == {("0",): 6, ("1",): -1}
    assert samples(text, "holdfast_rank_recorder_info", "rank", "source", "backend") == {("0", "nccl", "nccl"): 1}
    assert samples(text, "holdfast_rank_collective_seq", "group", "point") == {
        ("mesh_tp", "enqueued"): 8,
        ("mesh_tp", "completed"): 7,
        ("0", "enqueued"): 3,
        ("0", "completed"): 3,
    }
    assert samples(text, "holdfast_rank_pipeline_bubble_ratio", "rank") == {("0",): 0.25}
    phases = samples(text, "holdfast_rank_phase_seconds_total", "rank", "phase")
    assert (phases["0", "init"], phases["0", "data"], phases["0", "optimizer"]) == (4.0, 1.1, 0.2)
    assert samples(text, "holdfast_rank_data_wait_seconds_total", "rank")[("0",)] == 1.1
    assert samples(text, "holdfast_rank_ooms_total", "rank")[("0",)] == 2
    assert samples(text, "holdfast_events_dropped_total", "component")[("hooks",)] == 4
    assert samples(text, "holdfast_step_duration_seconds_count") == {(): 1}
    assert samples(text, "holdfast_snapshot_stall_seconds_sum") == {(): 0.02}
    assert samples(text, "holdfast_snapshots_skipped_total") == {(): 1}


async def test_how_the_own_time_of_a_rank_is_measured_is_one_series_once_it_is_known(folder: Path) -> None:
    node = await busy_node(folder)  # its second rank has reported nothing
    name, labels = "holdfast_rank_own_time_info", ("rank", "source", "reason")
    assert samples(scrape(node), name, *labels) == {("0", "none", "it sends messages"): 1}
    node.ranks[0].own_time_source, node.ranks[0].own_time_reason = OWN_TIME_SOURCE_EVENTS, ""
    assert samples(scrape(node), name, "rank", "source") == {("0", "events"): 1}
    assert "reason=" not in next(line for line in scrape(node).splitlines() if line.startswith(name + "{"))


async def test_a_rank_shows_its_gpu_only_if_it_has_one(folder: Path) -> None:
    node = await busy_node(folder)
    text = scrape(node)
    # The number is the driver's, as nvidia-smi shows it. The rank itself calls this GPU cuda:1.
    assert 'holdfast_rank_info{UUID="GPU-1",gpu="5",local_rank="0",node="node0",rank="0",run="run"} 1.0' in text
    assert 'holdfast_rank_info{local_rank="1",node="node0",rank="1",run="run"} 1.0' in text
    node.devices.gpus = {}
    assert 'holdfast_rank_info{UUID="GPU-1",local_rank="0",node="node0",rank="0",run="run"} 1.0' in scrape(node)


async def test_gpus_of_ranks_are_shown_and_no_others(folder: Path) -> None:
    node = await busy_node(folder)
    text = scrape(node)
    assert samples(text, "holdfast_gpu_temperature_celsius", "gpu", "UUID") == {("5", "GPU-1"): 91.0}
    assert samples(text, "holdfast_gpu_throttled", "reason")[("hw_thermal_slowdown",)] == 1
    assert samples(text, "holdfast_gpu_throttled", "reason")[("sw_power_cap",)] == 0
    assert samples(text, "holdfast_gpu_xid_errors_total", "gpu", "xid") == {("5", "63"): 1}
    assert samples(text, "holdfast_gpu_up", "gpu") == {("5",): 1}
    assert samples(text, "holdfast_gpu_driver_up", "node") == {("node0",): 1}
    node.devices.forget_readings()
    text = scrape(node)
    assert samples(text, "holdfast_gpu_driver_up", "node") == {("node0",): 0}
    assert samples(text, "holdfast_gpu_temperature_celsius", "gpu") == {}
    assert samples(text, "holdfast_gpu_up", "gpu") == {("5",): 1}
    node.devices.take(GpuSample((Gpu(5, "GPU-1", "0000:c1:00.0", gone="lost"),)))
    text = scrape(node)
    assert samples(text, "holdfast_gpu_up", "gpu") == {("5",): 0}
    assert samples(text, "holdfast_gpu_temperature_celsius", "gpu") == {}


async def test_nothing_stays_of_a_generation_that_is_over(folder: Path) -> None:
    node = await busy_node(folder)
    begin(node, 2, {4: 1})
    text = scrape(node)
    assert samples(text, "holdfast_rank_up", "rank") == {("4",): 1}
    assert samples(text, "holdfast_reports_total") == {(): 1}


async def test_a_label_with_a_fixed_set_shows_each_value_from_the_start(folder: Path) -> None:
    text = scrape(await busy_node(folder))
    for family in CATALOGUE["agent"]:
        for label, values in family.values.items():
            shown = {value for (value,) in samples(text, family.series_names()[0], label)}
            assert shown == set(values), family.name
