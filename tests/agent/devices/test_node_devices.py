"""Which rank is on which GPU, and which error of a GPU is a rank's own."""

import time

from holdfast_agent.devices.gpu import Gpu, GpuSample
from holdfast_agent.devices.node_devices import NodeDevices, gpus_of
from holdfast_agent.devices.xids import Xid, xid_of
from holdfast_agent.processes.rank import Rank
from holdfast_proto.v1.store_pb2 import GpuState


def gpu(index: int, **fields: object) -> Gpu:
    return Gpu(index, f"GPU-{index}", f"0000:{0x41 + index:02x}:00.0", **fields)  # type: ignore[arg-type]


def on(uuid: str, number: int = 0, pid: int = 100) -> Rank:
    return Rank(number, 1, number, pid + number, 1, device_uuid=uuid, began_unix_s=0.0)


def kernel(number: int, bus: int, pid: int | None = None) -> Xid:
    named = f", pid={pid}, name=python" if pid is not None else ""
    xid = xid_of(f"NVRM: Xid (PCI:0000:{bus:02x}:00): {number}{named}, words")
    assert xid is not None
    return xid


def state_of(found: NodeDevices, rank: Rank) -> GpuState:
    state = found.state_of(rank)
    assert state is not None
    return state


def devices(*gpus: Gpu, pids_are_ours: bool = True) -> NodeDevices:
    found = NodeDevices(pids_are_ours=pids_are_ours)
    found.take(GpuSample(gpus or (gpu(0), gpu(1))))
    return found


def test_a_rank_is_on_the_gpu_whose_uuid_it_reports() -> None:
    found = devices(gpu(0), gpu(1, parts=("MIG-x",)))
    assert found.gpu_of(on("GPU-1")) == found.gpu_of(on("MIG-x")) == found.gpus["GPU-1"]
    assert found.gpu_of(on("GPU-7")) is None
    state = state_of(found, on("MIG-x"))
    assert (state.gpu, state.uuid) == (1, "GPU-1")
    assert [each.index for each in gpus_of(found, [on("GPU-1"), on("MIG-x", 1), on("GPU-7", 2), on("GPU-0", 3)])] == [
        0,
        1,
    ]


def test_a_rank_that_reports_no_uuid_is_found_by_its_process_also_after_the_gpu_is_lost() -> None:
    found = devices(gpu(0), gpu(1, pids=(101,)))
    rank = on("", number=1)
    assert state_of(found, rank).uuid == "GPU-1"
    found.take(GpuSample((gpu(0), gpu(1, gone="lost"))))
    assert state_of(found, rank).fault.meaning == "the driver no longer reaches the GPU"
    assert found.state_of(on("")) is None


def test_a_gpu_that_is_lost_is_a_fatal_fault_since_it_was_first_seen_to_be() -> None:
    found = devices(gpu(0), gpu(1, gone="lost"))
    state = state_of(found, on("GPU-1"))
    assert state.fault.fatal and state.fault.unix_s > 0
    found.take(GpuSample((gpu(0), gpu(1, gone="lost"))))
    again = found.state_of(on("GPU-1"))
    assert again == state
    found.take(GpuSample((gpu(0), gpu(1))))
    assert not state_of(found, on("GPU-1")).HasField("fault")
    found.take(GpuSample((gpu(0), gpu(1, gone="reset_required"))))
    later = state_of(found, on("GPU-1"))
    assert later.fault.unix_s > state.fault.unix_s
    assert later.fault.meaning == "the driver cannot use the GPU before a reset"


def test_the_drivers_list_adds_gpus_and_takes_no_reading_away() -> None:
    found = devices(gpu(0, readings={"power_watts": 7.0}))
    found.take_list(GpuSample((gpu(0), gpu(1))))
    assert dict(found.gpus["GPU-0"].readings) == {"power_watts": 7.0}
    assert found.gpu_of(on("GPU-1")) is not None
    found.forget_readings()
    assert not found.answers and dict(found.gpus["GPU-0"].readings) == {}


def test_in_a_container_pids_of_the_driver_say_nothing() -> None:
    found = devices(gpu(0, pids=(100,)), pids_are_ours=False)
    assert found.state_of(on("")) is None


def test_a_fatal_xid_is_the_fault_of_each_rank_on_that_gpu_and_of_no_other() -> None:
    found = devices()
    assert found.take_xid(kernel(79, 0x42, pid=1)) is not None
    state = state_of(found, on("GPU-1"))
    assert (state.fault.xid, state.fault.gpu, state.fault.fatal) == (79, 1, True)
    assert state.fault.meaning == "the GPU has fallen off the bus"
    assert state.fault.line.startswith("NVRM: Xid (PCI:0000:42:00): 79")
    assert not state_of(found, on("GPU-0")).HasField("fault")
    assert dict(found.xid_counts) == {("GPU-1", 79): 1}


def test_an_error_before_a_rank_was_started_is_not_its_own() -> None:
    found = devices()
    found.take_xid(kernel(79, 0x41))
    rank = on("GPU-0")
    rank.began_unix_s = time.time() + 1
    state = state_of(found, rank)
    assert not state.HasField("fault")


def test_an_xid_is_about_the_gpu_of_its_uuid_and_left_out_if_that_is_unknown() -> None:
    found = devices()
    assert found.take_xid(kernel(79, 0x99)) is None
    assert found.take_xid(Xid(79), "GPU-9") is None
    assert not found.xid_counts
    seen = found.take_xid(Xid(79), "GPU-1")  # as NVML reports it
    assert seen is not None and seen.uuid == "GPU-1"


def test_a_process_that_failed_on_the_gpu_ended_for_that() -> None:
    found = devices()
    found.take_xid(kernel(31, 0x41, pid=100))
    assert not state_of(found, on("GPU-0")).HasField("fault")
    fault = found.fault_of_end(on("GPU-0"), time.time())
    assert fault is not None and (fault.xid, fault.fatal) == (31, False)
    assert found.fault_of_end(on("GPU-0", number=1), time.time()) is None  # another process on the same GPU
    assert found.fault_of_end(on("GPU-0"), time.time() + 120) is None  # long ago


def test_without_a_process_the_gpu_decides() -> None:
    found = devices(pids_are_ours=False)
    found.take_xid(kernel(31, 0x41, pid=9999))
    assert found.fault_of_end(on("GPU-0"), time.time()) is not None
    assert found.fault_of_end(on("GPU-1"), time.time()) is None


def test_what_a_killed_process_leaves_explains_nothing() -> None:
    found = devices()
    found.take_xid(kernel(45, 0x41, pid=100))
    assert found.fault_of_end(on("GPU-0"), time.time()) is None


def test_the_log_is_read_before_an_end_is_explained() -> None:
    found = devices()

    def refresh() -> None:
        found.take_xid(kernel(79, 0x41))

    found.refresh = refresh
    fault = found.fault_of_end(on("GPU-0"), time.time())
    assert fault is not None and fault.xid == 79


def test_only_heat_and_lack_of_power_are_throttles_of_a_rank() -> None:
    found = devices(gpu(0, throttles=("hw_thermal_slowdown", "sw_power_cap")))
    state = state_of(found, on("GPU-0"))
    assert list(state.throttles) == ["hw_thermal_slowdown"]


def used(index: int, ratio: float | None, **fields: object) -> Gpu:
    return gpu(index, readings={} if ratio is None else {"utilization_ratio": ratio}, **fields)


def utilization(found: NodeDevices, rank: Rank) -> tuple[float, int]:
    state = state_of(found, rank)
    return state.utilization_sum, state.utilization_samples


def test_samples_of_the_utilization_of_a_ranks_gpu_are_added_up() -> None:
    found = devices(used(0, 0.5), used(1, 1.0))
    found.take(GpuSample((used(0, None), used(1, 0.75))))
    found.take(GpuSample((used(1, 0.25),)))  # the probe may miss a GPU
    assert utilization(found, on("GPU-0")) == (0.5, 1)
    assert utilization(found, on("GPU-1")) == (2.0, 3)
    found.forget_readings()
    assert utilization(found, on("GPU-1")) == (2.0, 3)


def test_of_a_part_of_a_gpu_and_without_a_sample_the_utilization_is_unknown() -> None:
    found = devices(used(0, 0.5, parts=("MIG-x",), pids=(101,)))
    assert utilization(found, on("MIG-x")) == (0.0, 0)
    assert utilization(found, on("", number=1)) == (0.0, 0)
    without_a_sample = NodeDevices()
    without_a_sample.take_list(GpuSample((gpu(0),)))
    assert utilization(without_a_sample, on("GPU-0")) == (0.0, 0)
