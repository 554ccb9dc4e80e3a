"""Which device a rank computes on, and that finding it sets up no GPU."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast_hooks
from holdfast_hooks import ConfigurationError
from holdfast_hooks.telemetry import own_device
from holdfast_hooks.telemetry.device_memory import RankMemory
from holdfast_hooks.telemetry.own_device import OwnDevice, checked_name, may_have_gpus
from tests.support.fake_cuda import FakeCuda, TensorOn


class Model:
    def __init__(self, device: str) -> None:
        self.weight = TensorOn(device)

    def named_parameters(self) -> list[tuple[str, TensorOn]]:
        return [("weight", self.weight)]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    gpus = FakeCuda(4)
    gpus.install(monkeypatch)
    return gpus


def in_another_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor() as threads:
        return threads.submit(call).result()


def report(device: OwnDevice, *, stepped: bool = True) -> str:
    """Return the device as the reporter's thread finds it."""
    in_another_thread(lambda: device.look(stepped=stepped))
    return device.name


def test_on_a_machine_with_gpus_the_first_step_tells_whether_they_are_used(cuda: FakeCuda) -> None:
    assert OwnDevice(None, {}, may_have_gpus=False).name == "cpu"  # from the beginning
    device = OwnDevice(None, {}, may_have_gpus=True)
    assert report(device, stepped=False) == ""
    assert report(device) == "cpu"
    assert not cuda.initialized
    cuda.use(2)
    assert (report(device), device.gpu) == ("cuda:2", 2)


def test_the_parameters_of_the_state_show_the_gpu(cuda: FakeCuda) -> None:
    model = Model("cpu")
    device = OwnDevice(None, {"model": model}, may_have_gpus=True)
    assert report(device, stepped=False) == ""
    cuda.use(0)  # a tensor for a moment, before the program has selected its GPU
    cuda.use(3)
    model.weight = TensorOn("cuda:3")
    device.look_at_state()
    assert (report(device), device.gpu) == ("cuda:3", 3)


def test_a_first_impression_gives_way_to_the_gpu_of_the_first_step(cuda: FakeCuda) -> None:
    device = OwnDevice(None, {}, may_have_gpus=True)
    cuda.use(0)
    assert report(device, stepped=False) == "cuda:0"
    cuda.allocated[0] = 0
    cuda.use(1)
    assert report(device) == "cuda:1"
    cuda.use(2)
    assert report(device) == "cuda:1"


def test_of_several_gpus_with_memory_the_training_threads_current_one_counts(cuda: FakeCuda) -> None:
    device = OwnDevice(None, {}, may_have_gpus=True)
    for gpu in (0, 1, 2):
        cuda.use(gpu)
    cuda.set_device(2)
    assert (report(device), device.wants_current) == ("", True)
    device.note_current()
    assert (device.wants_current, report(device)) == (False, "cuda:2")
    assert cuda.contexts == {0, 1, 2}


def test_without_statistics_the_current_device_counts(cuda: FakeCuda) -> None:
    device = OwnDevice(None, {}, may_have_gpus=True)
    cuda.use(1)
    cuda.set_device(1)
    cuda.has_statistics = False
    assert report(device) == "" and device.wants_current
    device.note_current()
    assert report(device) == "cuda:1"


def test_cuda_that_is_initialised_and_not_used_is_no_gpu(cuda: FakeCuda) -> None:
    cuda.initialized = True
    assert report(OwnDevice(None, {}, may_have_gpus=True)) == "cpu"
    assert cuda.contexts == set()


def test_a_gpu_without_a_number_is_found(cuda: FakeCuda) -> None:
    device = OwnDevice("cuda", {}, may_have_gpus=True)
    assert report(device) == "cuda"
    assert RankMemory(device).status().allocated_bytes == 0
    cuda.use(1)
    assert report(device) == "cuda:1"


def test_memory_is_that_of_the_ranks_own_gpu_in_every_thread(cuda: FakeCuda) -> None:
    device = OwnDevice(None, {}, may_have_gpus=True)
    memory = RankMemory(device)
    assert (memory.status().limit_bytes, memory.uuid()) == (0, "")
    cuda.use(3, nbytes=5)
    report(device)
    status, uuid = in_another_thread(lambda: (memory.status(), memory.uuid()))
    assert (status.allocated_bytes, status.limit_bytes, uuid) == (5, 80 << 30, "GPU-00-3")
    assert cuda.contexts == {3}


def test_a_part_of_a_gpu_has_the_uuid_of_the_part(cuda: FakeCuda) -> None:
    cuda.names[0] = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    cuda.use(0)
    device = OwnDevice(None, {}, may_have_gpus=True)
    report(device)
    assert RankMemory(device).uuid() == "MIG-00-0"


@pytest.mark.parametrize("wanted", ["cuda:99", "cuda:0", "cuda"])
def test_a_gpu_on_a_machine_without_one_is_named_in_one_line_and_the_cpu_is_taken(
    wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    device = OwnDevice(wanted, {}, may_have_gpus=False)
    assert (device.name, device.gpu, report(device)) == ("cpu", None, "cpu")
    memory = RankMemory(device).status()
    assert min(memory.allocated_bytes, memory.limit_bytes) > 0
    (line,) = caplog.messages
    assert line.startswith(f'the device of this rank is searched for: attach(device="{wanted}"): this machine has no')


def test_a_gpu_without_the_usual_driver_counts_once_the_script_uses_it(
    cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    device = OwnDevice("cuda:1", {}, may_have_gpus=False)
    assert report(device) == "cpu"
    cuda.use(1)
    assert report(device) == "cuda:1"
    assert (OwnDevice("cuda:1", {}, may_have_gpus=False).name, len(caplog.messages)) == ("cuda:1", 1)


def test_an_index_that_torch_does_not_have_is_named_in_one_line_once_the_script_has_initialised_cuda(
    cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    device = OwnDevice("cuda:4", {}, may_have_gpus=True)
    memory = RankMemory(device)
    assert (report(device), memory.status().limit_bytes, caplog.messages, cuda.initialized) == ("cuda:4", 0, [], False)
    cuda.use(2, nbytes=5)
    assert (memory.status().limit_bytes, device.gpu) == (0, None)  # nothing asks torch for GPU 4
    assert (report(device), device.gpu, memory.status().allocated_bytes) == ("cuda:2", 2, 5)
    assert caplog.messages == [
        'the device of this rank is searched for: attach(device="cuda:4"): torch has 4 GPUs here, the first one is '
        "cuda:0: give one of them"
    ]
    assert cuda.contexts == {2}


def test_a_device_that_was_given_wins_and_gives_no_line(cuda: FakeCuda, caplog: pytest.LogCaptureFixture) -> None:
    device = OwnDevice("cuda:3", {"model": Model("cuda:0")}, may_have_gpus=True)
    device.look_at_state()
    cuda.use(0)
    assert (report(device), device.gpu, caplog.messages) == ("cuda:3", 3, [])
    assert report(OwnDevice("cpu", {"model": Model("cuda:0")}, may_have_gpus=True)) == "cpu"


def test_an_attach_with_a_gpu_that_does_not_exist_trains_on(
    launched: object, agent: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast_hooks.hooks.may_have_gpus", lambda: False)
    with holdfast_hooks.attach(device="cuda:99") as hooks:
        assert list(hooks.steps(until=2)) == [0, 1]
        agent.wait_until(lambda: agent.of("report"))
    assert agent.of("report")[-1].device == "cpu"
    assert [line for line in caplog.messages if "searched for" in line] == [
        'the device of this rank is searched for: attach(device="cuda:99"): this machine has no GPU (no '
        "/dev/nvidiactl, /dev/kfd, /dev/dxg): leave device out, or run elsewhere"
    ]


@pytest.mark.parametrize("wrong", ["cdua:0", "gpu", "", True, -1, "cuda:x"])
def test_nonsense_is_refused_in_one_line(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^attach\(device=.*\): torch knows no such device: give a name") as e:
        checked_name(wrong)
    assert "\n" not in str(e.value)


def test_names_and_devices_of_torch_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [checked_name(device) for device in (None, "cuda:1", torch.device("cuda", 1), 1, "cpu", "mps")]
    assert taken == [None, "cuda:1", "cuda:1", "cuda:1", "cpu", "mps"]
    monkeypatch.delitem(own_device.sys.modules, "torch")  # type: ignore[attr-defined]
    assert checked_name("cuda:1") == "cuda:1"
    with pytest.raises(ConfigurationError):
        checked_name("cdua:1")


def test_the_drivers_devices_show_whether_there_may_be_gpus(tmp_path: Path) -> None:
    assert not may_have_gpus(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert may_have_gpus(tmp_path)


def test_a_rank_reports_the_gpu_that_it_begins_to_use_in_its_first_step(
    agent: Any, launched: object, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast_hooks.hooks.may_have_gpus", lambda: True)
    with holdfast_hooks.attach(check_replicas=False) as hooks:
        agent.wait_until(lambda: agent.of("report"))
        assert agent.of("hello")[0].device == agent.of("report")[0].device == ""
        for step in hooks.steps(until=400):
            if step == 1:
                cuda.use(1)
                cuda.use(2)
                cuda.set_device(2)
            if step > 1 and agent.of("report")[-1].device:
                break
            reports = len(agent.of("report"))
            agent.wait_until(lambda n=reports: len(agent.of("report")) > n)
    last = agent.of("report")[-1]
    assert (last.device, last.device_uuid, last.memory.allocated_bytes) == ("cuda:2", "GPU-00-2", 1 << 20)
    assert cuda.contexts == {1, 2}


def test_a_wrong_device_ends_the_attach_but_never_an_observed_rank(
    launch: Callable[..., Any], agent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    launch()
    with pytest.raises(ConfigurationError, match="torch knows no such device"):
        holdfast_hooks.attach(device="cdua")
    launch(observed=True)
    with holdfast_hooks.attach(device="cdua"):
        agent.wait_until(lambda: agent.of("report"))
    assert "the device of this rank is searched for" in caplog.text
