"""The groups behind the ids of a backend's own recorder: only calls in flight show them."""

import json

import pytest
from torch._C import _distributed_c10d as bindings

from holdfast_hooks.progress.device_poll import DevicePoll
from tests.trainer_hooks.progress.device_world import Backend, DeviceWorld, Group, numbers


class Nccl2:
    """The recorder of nccl2, as torch 2.15 has it: a status by id, and entries with id and name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = DeviceWorld(monkeypatch, "2.15.0+cu132")
        self.status: dict[str, dict[str, str]] = {}
        self.in_flight: dict[str, str] = {}
        """Id -> name."""
        self.asked = 0
        self.is_broken = False

        def dump(collectives: bool, only_active: bool, backend: str = "gloo") -> bytes:
            assert backend == "nccl2" and only_active == collectives
            self.asked += collectives
            document: dict[str, object] = {"pg_status": self.status}
            if collectives and self.in_flight:
                document["entries"] = [
                    {"pg_id": int(key), "process_group": [name, "mesh_dp"], "state": "scheduled"}
                    for key, name in self.in_flight.items()
                ]
            if collectives and self.is_broken:
                document["entries"] = [{}]
            return json.dumps(document).encode()

        dump.__doc__ = "_dump_fr_trace_json(backend: str = 'gloo') -> bytes"
        monkeypatch.setattr(bindings, "_dump_fr_trace_json", dump)

    def add(self, name: str) -> Group:
        backend = Backend("nccl2")
        backend.calls = 9
        group = Group(name, [0, 1], cuda=backend)
        self.world.add(group)
        self.world.hooks[group] = None
        return group


@pytest.fixture
def nccl2(monkeypatch: pytest.MonkeyPatch) -> Nccl2:
    return Nccl2(monkeypatch)


def shown(poll: DevicePoll) -> dict[int, str]:
    """Return newest enqueued number -> group."""
    return {one.enqueued: one.group for one in poll.poll()}


def test_groups_get_their_names_from_calls_in_flight(nccl2: Nccl2) -> None:
    nccl2.add("0")
    nccl2.add("tp")
    nccl2.status = {"2": numbers(20, -1, 19), "5": numbers(50, -1, 49)}
    nccl2.in_flight = {"5": "0"}
    poll = nccl2.world.poll()
    assert shown(poll) == {20: "", 50: "0"}
    nccl2.in_flight = {"2": "tp"}
    assert shown(poll) == {20: "tp", 50: "0"}
    assert nccl2.asked == 2


def test_a_group_without_a_hook_is_named_with_the_size_that_gets_it_one(
    nccl2: Nccl2, caplog: pytest.LogCaptureFixture
) -> None:
    del nccl2.world.hooks[nccl2.add("0")]
    assert nccl2.world.poll().poll() == []
    (record,) = caplog.records
    assert "no recorder for backend nccl2" in record.getMessage()
    assert "set TORCH_FR_BUFFER_SIZE=2000 for the ranks" in record.getMessage()


def test_nobody_asks_once_all_are_known(nccl2: Nccl2) -> None:
    nccl2.add("0")
    nccl2.add("tp")
    nccl2.status = {"0": numbers(20, -1, 19), "1": numbers(50, -1, 49)}
    nccl2.in_flight = {"0": "0", "1": "tp"}
    poll = nccl2.world.poll()
    for _ in range(20):
        assert shown(poll) == {20: "0", 50: "tp"}
    assert nccl2.asked == 1


def test_a_name_that_does_not_show_is_asked_for_more_and_more_rarely_until_a_new_group_comes(nccl2: Nccl2) -> None:
    nccl2.add("0")
    nccl2.add("tp")
    nccl2.status = {"0": numbers(20, -1, 19), "1": numbers(50, -1, 49)}
    poll = nccl2.world.poll()
    asked = []
    for _ in range(40):
        poll.poll()
        asked.append(nccl2.asked)
    assert [poll + 1 for poll in range(40) if asked[poll] > ([0, *asked][poll])] == [1, 2, 4, 8, 16, 32]
    nccl2.status["2"] = numbers(1, -1, 0)
    poll.poll()
    assert nccl2.asked == 7


def test_a_name_that_comes_again_belongs_to_its_newest_id(nccl2: Nccl2) -> None:
    first = nccl2.add("0")
    nccl2.add("tp")
    nccl2.status = {"0": numbers(10, -1, 9), "1": numbers(20, -1, 19)}
    nccl2.in_flight = {"0": "0", "1": "tp"}
    poll = nccl2.world.poll()
    assert shown(poll) == {10: "0", 20: "tp"}
    del nccl2.world.groups[first]
    nccl2.add("0")
    nccl2.status["10"] = numbers(30, -1, 29)
    nccl2.in_flight = {"10": "0"}
    assert shown(poll) == {20: "tp", 30: "0"}


def test_the_only_group_is_not_taken_for_one_that_is_known_to_be_gone(nccl2: Nccl2) -> None:
    gone, last = nccl2.add("tp"), nccl2.add("0")
    nccl2.status = {"0": numbers(10, -1, 9)}
    nccl2.in_flight = {"0": "tp"}
    poll = nccl2.world.poll()
    assert shown(poll) == {10: "tp"}
    del nccl2.world.groups[gone]
    assert last in nccl2.world.groups
    assert shown(poll) == {}


def test_a_recorder_whose_calls_never_complete_is_not_asked_for_all_of_them(nccl2: Nccl2) -> None:
    nccl2.add("0")
    nccl2.add("tp")
    nccl2.status = {"0": numbers(150, -1, -1), "1": numbers(51, -1, -1)}
    nccl2.in_flight = {"0": "0", "1": "tp"}
    poll = nccl2.world.poll()
    assert shown(poll) == {150: "", 51: ""}
    assert nccl2.asked == 0


def test_a_dump_without_sense_is_a_failure_and_the_numbers_stay(nccl2: Nccl2, caplog: pytest.LogCaptureFixture) -> None:
    nccl2.add("0")
    nccl2.add("tp")
    nccl2.status = {"0": numbers(20, -1, 19), "1": numbers(50, -1, 49)}
    nccl2.in_flight = {"0": "0"}
    poll = nccl2.world.poll()
    nccl2.is_broken = True
    assert shown(poll) == {20: "", 50: ""}
    assert poll.failures_total == 1
    nccl2.is_broken = False
    assert shown(poll) == {20: "0", 50: ""}
    assert len(caplog.records) == 1
