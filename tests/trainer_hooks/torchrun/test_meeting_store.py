"""The records and the world of a run in a real Redis."""

from collections.abc import Iterator

import pytest

from holdfast_proto import keys
from holdfast_proto.run_key import RunKey
from holdfast_proto.v1.meeting_pb2 import MeetingMember, MeetingRecord, MeetingWorld
from holdfast_torchrun.meeting import LEASE_S
from holdfast_torchrun.meeting_store import MeetingStore
from tests.support.run_keys import SECRET
from tests.support.store_server import StoreServer

RUN = "r"


class Nodes:
    """Stores of several nodes of one run."""

    def __init__(self, server: StoreServer) -> None:
        self._server = server

    def store(self, secret: str = SECRET) -> MeetingStore:
        return MeetingStore(self._server.client(), RUN, RunKey(secret, RUN).seal)


@pytest.fixture
def nodes(store_server: StoreServer) -> Iterator[Nodes]:
    yield Nodes(store_server)


def record(node: str, process: str = "p", **fields: int) -> MeetingRecord:
    return MeetingRecord(node=node, process=process, address="127.0.0.1", nodes=2, waiting=True, **fields)


def world(round_: int = 1, node: str = "a") -> MeetingWorld:
    return MeetingWorld(
        round=round_, members=[MeetingMember(node=node, process="p", address="127.0.0.1")], store_port=5
    )


def names(store: MeetingStore, nodes: list[str] | None = None) -> list[str]:
    return sorted(store.exchange(record("a"), nodes=nodes).records)


def test_what_one_node_writes_another_reads(nodes: Nodes) -> None:
    a, b = nodes.store(), nodes.store()
    written = record("b", round=7)
    b.exchange(written)
    seen = a.exchange(record("a"))
    assert seen.records["b"] == written
    assert seen.is_whole
    assert (seen.world, seen.round) == (None, 0)
    assert a.replace(seen.stored, world())
    assert [b.exchange(written, nodes=nodes).world for nodes in (["a"], ["a"], None)] == [world()] * 3
    b.remove("b")
    assert names(a) == ["a"]


def test_of_two_nodes_that_form_a_world_one_succeeds(nodes: Nodes) -> None:
    a, b = nodes.store(), nodes.store()
    seen_by_a, seen_by_b = (store.exchange(record(node)) for store, node in ((a, "a"), (b, "b")))
    assert b.replace(seen_by_b.stored, world(node="b"))
    assert not a.replace(seen_by_a.stored, world(node="a"))
    assert a.exchange(record("a")).world == world(node="b")


def test_a_node_reads_the_records_that_it_asks_for_and_that_of_the_node_that_rings(nodes: Nodes) -> None:
    a, b, c = nodes.store(), nodes.store(), nodes.store()
    c.exchange(record("c"))
    assert names(a, []) == ["a"]
    b.exchange(record("b"), nodes=[])
    assert names(a, []) == ["a"]
    assert names(a, ["c", "d"]) == ["a", "c"]
    b.exchange(record("b"), ring="b 1", nodes=[])
    seen = a.exchange(record("a"), nodes=[])
    assert (sorted(seen.records), seen.has_rung, seen.is_whole) == (["a", "b", "c"], True, False)
    assert not a.exchange(record("a"), nodes=[]).has_rung
    b.remove("b")
    assert names(a, []) == ["a", "b", "c"]
    assert names(a, ["b"]) == ["a", "c"]
    assert a.exchange(record("a")).is_whole


def test_a_node_sees_itself_although_it_was_stopped_for_the_time_of_a_lease(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = nodes.store()
    monkeypatch.setattr("holdfast_torchrun.meeting_store.LEASE_S", 0.0)
    seen = a.exchange(record("a"))
    assert (list(seen.records), seen.is_whole) == (["a"], True)


def test_with_a_new_world_all_that_was_read_before_is_forgotten(nodes: Nodes) -> None:
    a, b = nodes.store(), nodes.store()
    b.exchange(record("b"))
    seen = a.exchange(record("a"))
    assert sorted(seen.records) == ["a", "b"]
    assert b.replace(seen.stored, world())
    assert names(a, []) == ["a"]


def test_records_of_another_key_or_place_count_as_absent(nodes: Nodes, store_server: StoreServer) -> None:
    a, forger = nodes.store(), nodes.store("another key of at least 32 characters")
    forger.exchange(record("forged"), ring="forged 1")
    nodes.store().exchange(record("b"))
    with store_server.client() as client:
        copied = client.hget(keys.meeting_records(RUN), "b")
        assert isinstance(copied, bytes)
        client.hset(keys.meeting_records(RUN), mapping={"c": copied, "text": b"\xff\x00", "empty": b""})
        client.set(keys.meeting_world(RUN), b"no world")
    assert names(a, ["c", "text"]) == ["a"]
    assert names(a) == ["a", "b"]
    seen = a.exchange(record("a"))
    assert seen.world is None
    assert a.replace(seen.stored, world())  # it does not stay


@pytest.mark.parametrize(
    "bad",
    [
        MeetingWorld(round=1, store_port=5),
        MeetingWorld(round=1, members=world().members, store_port=65536),
        MeetingWorld(round=1, members=[MeetingMember(node="a b", process="p", address="x")], store_port=5),
        MeetingWorld(round=1, members=[MeetingMember(node="a", process="p", address="x\n")], store_port=5),
    ],
)
def test_a_world_that_cannot_be_counts_as_absent(nodes: Nodes, bad: MeetingWorld) -> None:
    store = nodes.store()
    assert store.replace(b"", bad)
    assert store.exchange(record("a")).world is None


def test_a_record_that_is_not_renewed_is_of_a_lost_node(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = nodes.store(), nodes.store()
    b.exchange(record("b"))
    assert names(a) == ["a", "b"]
    # As if the record was written that much earlier by the clock of Redis.
    monkeypatch.setattr("holdfast_torchrun.meeting_store.LEASE_S", 0.0)
    assert names(a) == ["a"]
    assert names(a, ["b"]) == ["a"]
    assert LEASE_S == 3.0


def test_a_name_has_one_torchrun_that_is_alive(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = nodes.store(), nodes.store()
    assert first.claim(record("a", "1"))
    assert first.claim(record("a", "1"))
    assert not second.claim(record("a", "2"))
    monkeypatch.setattr("holdfast_torchrun.meeting_store.LEASE_S", 0.0)
    assert second.claim(record("a", "2"))
