"""How the nodes that observe one run find each other in Redis."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from holdfast_cli.errors import SettingsError
from holdfast_cli.observed_nodes import membership
from holdfast_cli.observed_nodes.membership import Membership
from holdfast_cli.observed_nodes.store_view import StoreView
from holdfast_proto import keys
from holdfast_proto.state_value import write_state
from holdfast_proto.v1 import store_pb2 as store
from tests.support.run_keys import KnownKey, opened, seal_of, sealed, sealed_spec
from tests.support.store_server import StoreServer

Join = Callable[..., store.RunSpec]


KEY = KnownKey("r")


def of_start(instance: str, place: str, message: Message) -> bytes:
    return sealed(place, message, run="r", instance=instance)


def never() -> None:
    pass


@pytest.fixture
def join(store_server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Join:
    """A function with which a node joins, and that does not wait for what is in its way."""
    monkeypatch.setattr(membership, "JOIN_PATIENCE_S", 0.0)

    def join(node: str, *, nodes: int = 2, **settings: Any) -> store.RunSpec:
        settings.setdefault("on_hang", store.HANG_ACTION_REPORT)
        spec = store.RunSpec(run="r", nodes=nodes, instance=f"of-{node}", **settings)
        return Membership(store_server.client(), "r", node, KEY).join(spec, never)

    return join


def test_the_first_node_begins_the_run_and_the_others_take_its_spec(join: Join, store_server: StoreServer) -> None:
    assert [join(node).instance for node in ("b", "a", "c")] == ["of-b"] * 3
    assert Membership(store_server.client(), "r", "c", KEY).renew() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("began", "node", "joins", "refusal"),
    [
        ({}, "b", {"nodes": 3}, "--nodes 3: a began run r with --nodes 2"),
        ({"on_hang": store.HANG_ACTION_ABORT}, "b", {}, "--on-hang: a began run r with another value"),
        ({"restores": True}, "b", {}, "--restore: a began run r with it"),
        ({}, "a", {}, r"a node a already observes run r: .* with --node"),
    ],
    ids=["another number of nodes", "one that must not end ranks", "one that restores nothing", "the same name"],
)
def test_a_node_that_does_not_fit_the_run_does_not_join_it(
    join: Join, began: dict[str, Any], node: str, joins: dict[str, Any], refusal: str
) -> None:
    join("a", **began)
    with pytest.raises(SettingsError, match=refusal):
        join(node, **joins)


def test_after_all_nodes_have_left_the_next_begins_anew(join: Join, store_server: StoreServer) -> None:
    join("a")
    store_server.client().set(keys.state("r"), of_start("of-a", keys.state("r"), store.CoordinatorState(run="r")))
    member = Membership(store_server.client(), "r", "a", KEY)
    member.leave()
    assert join("b").instance == "of-b"
    assert store_server.client().get(keys.state("r")) is None


def test_a_run_that_has_ended_is_not_joined(join: Join, store_server: StoreServer) -> None:
    join("a")
    ended = store.CoordinatorState(run="r", phase=store.RUN_PHASE_FINISHED)
    store_server.client().set(keys.state("r"), of_start("of-a", keys.state("r"), ended))
    with pytest.raises(SettingsError, match="run r has ended, and is still observed by a"):
        join("b")


def test_a_run_that_holdfast_has_started_is_left_alone(join: Join, store_server: StoreServer) -> None:
    client = store_server.client()
    spec = sealed_spec(store.RunSpec(run="r", nodes=1, command=["python"]))
    client.set(keys.spec("r"), spec)
    client.sadd(keys.nodes("r"), "n")
    client.set(keys.node("r", "n"), b"its state")
    with pytest.raises(SettingsError, match="run r already runs on n with this Redis"):
        join("a")
    assert client.get(keys.spec("r")) == spec


def test_a_node_sees_the_run_its_newest_incident_and_its_own_ranks(store_server: StoreServer) -> None:
    client: Any = store_server.client()
    view = StoreView(client, "r", "a", seal_of("r"))
    assert view.status() is None
    record = store.CoordinatorState(run="r", phase=store.RUN_PHASE_RUNNING, generation=2, newest_step=7)
    client.set(keys.state("r"), of_start("i", keys.state("r"), record))
    for name in ("0001-x", "0002-y"):
        client.hset(keys.incidents("r"), name, of_start("i", keys.incident("r", name), store.Incident(id=name)))
    for name, rank in (("a", 0), ("b", 1)):
        state = store.NodeState(run="r", node=name, generation=2, ranks=[store.RankState(rank=rank)])
        client.set(key := keys.node("r", name), seal_of("r").close(key, write_state(state)))
    client.hset(keys.incidents("r"), "0003-z", b"\xff")
    assert [incident.id for incident in view.incidents()] == ["0001-x", "0002-y"]
    client.hdel(keys.incidents("r"), "0003-z")
    status = view.status()
    assert status is not None
    assert (status.phase, status.generation, status.newest_step) == (store.RUN_PHASE_RUNNING, 2, 7)
    assert (status.incidents, status.newest_incident.id) == (2, "0002-y")
    assert [(rank.rank, rank.node) for rank in status.ranks] == [(0, "a")]
    assert view.silent_nodes(["a", "b", "c"]) == ["c"]


def test_the_ends_of_ranks_and_launchers_are_events_of_the_node(store_server: StoreServer) -> None:
    client: Any = store_server.client()
    view = StoreView(client, "r", "a", seal_of("r"))
    view.announce_end(60.0)
    view.tell_launcher_end(137)
    place = keys.events("r")
    entries = [fields[b"event"] for _, fields in client.xrange(place)]
    events = [store.Event.FromString(opened(place, entry, run="r")) for entry in entries]
    assert [event.node for event in events] == ["a", "a"]
    assert (events[0].end_announced.within_s, events[1].launcher_end.code) == (60.0, 137)
