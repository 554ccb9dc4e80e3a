"""Torchruns of several nodes as threads of this process, with a real Redis and real stores of torch."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from holdfast_proto import keys
from holdfast_proto.run_key import RunKey
from holdfast_proto.v1.meeting_pb2 import MeetingRecord
from holdfast_torchrun import reading_plan, rendezvous
from holdfast_torchrun.meeting_store import MeetingStore
from holdfast_torchrun.node_companion import NoCompanion
from holdfast_torchrun.rendezvous import HoldfastRendezvous, create_rendezvous
from tests.support.coroutines import PATIENCE_S, wait_until
from tests.support.run_keys import SECRET, write_key
from tests.support.store_server import StoreServer

Meeting = Future[RendezvousInfo]


class Torchruns:
    """The torchruns of one run, by node."""

    def __init__(self, server: StoreServer, key: Path) -> None:
        self._server = server
        self._key = key
        self._threads = ThreadPoolExecutor(16)
        self._all: list[HoldfastRendezvous] = []

    def start(self, node: str, most: int = 3, **conf: str) -> HoldfastRendezvous:
        """Return the rendezvous of a new torchrun with ``--nnodes=2:3``, or another number for 3."""
        given = {"node": node, "run_key_file": str(self._key), **conf}
        made = create_rendezvous(RendezvousParameters("holdfast", self._server.url, "r", 2, most, "127.0.0.1", **given))
        assert isinstance(made, HoldfastRendezvous)
        self._all.append(made)
        return made

    def meet(self, *torchruns: HoldfastRendezvous) -> list[Meeting]:
        """Let torchruns wait for a world."""
        return [self._threads.submit(one.next_rendezvous) for one in torchruns]

    def sees(self, node: str, *, waiting: bool = False) -> bool:
        """Whether the record of a node is there and fresh, and whether the node waits."""
        with self._server.client() as client:
            store = MeetingStore(client, "r", RunKey(SECRET, "r").seal)
            store._set_clock(client.time())
            found = client.hgetall(keys.meeting_records("r"))
            record = store._fresh([text for pair in found.items() for text in pair]).get(node)
        return record is not None and (record.waiting or not waiting)

    def end(self) -> None:
        for one in self._all:
            one.shutdown()
        self._threads.shutdown(wait=False, cancel_futures=True)


@pytest.fixture(params=[reading_plan.RECORDS_PER_S, 1e-6], ids=["few nodes", "as if nodes were many"])
def torchruns(
    request: pytest.FixtureRequest, store_server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Torchruns]:
    monkeypatch.setattr(rendezvous, "NodeCompanion", lambda _: NoCompanion())
    # A node of many reads all records once, and later only if it is the first or the one before it is lost.
    monkeypatch.setattr(reading_plan, "RECORDS_PER_S", request.param)
    made = Torchruns(store_server, write_key(tmp_path, "r"))
    yield made
    made.end()


def places(meetings: list[Meeting]) -> list[tuple[int, int]]:
    """Return rank and size of the worlds that torchruns come into."""
    return [(info.rank, info.world_size) for info in (one.result(PATIENCE_S) for one in meetings)]


def kill(torchrun: HoldfastRendezvous) -> None:
    """Leave as a killed process does: nothing is said, and the record is no longer renewed."""
    assert torchrun._attendance is not None
    torchrun._attendance.stop()


def test_the_nodes_of_a_world_share_a_store(torchruns: Torchruns) -> None:
    a, b = torchruns.start("a"), torchruns.start("b")
    of_a, of_b = (one.result(PATIENCE_S) for one in torchruns.meet(a, b))
    assert (of_a.rank, of_b.rank) == (0, 1)
    of_a.store.set("said by", "a")
    assert of_b.store.get("said by") == b"a"
    masters = [one.bootstrap_store_info for one in (of_a, of_b)]
    assert masters[0] == masters[1] is not None
    assert not a.use_agent_store
    assert (a.num_nodes_waiting(), a.is_closed(), a.get_run_id(), a.get_backend()) == (0, False, "r", "holdfast")


def test_a_member_that_returns_restarts_all_with_their_ranks(torchruns: Torchruns) -> None:
    a, b = torchruns.start("b"), torchruns.start("c")
    assert places(torchruns.meet(a, b)) == [(0, 2), (1, 2)]
    spare = torchruns.start("a")  # first by name, and still a spare
    (waiting,) = torchruns.meet(spare)
    wait_until(lambda: torchruns.sees("a", waiting=True), "the spare is seen")
    assert (a.num_nodes_waiting(), b.num_nodes_waiting()) == (0, 0)
    (returned,) = torchruns.meet(b)
    wait_until(lambda: a.num_nodes_waiting() == 1, "a is asked to restart")
    assert not returned.done()
    assert places([*torchruns.meet(a), returned]) == [(0, 2), (1, 2)]
    assert not waiting.done()


def test_a_spare_takes_the_rank_of_a_lost_node(torchruns: Torchruns) -> None:
    a, b = torchruns.start("a"), torchruns.start("b")
    assert places(torchruns.meet(a, b)) == [(0, 2), (1, 2)]
    spare = torchruns.start("c")
    waiting = torchruns.meet(spare)
    kill(a)
    assert places([*torchruns.meet(b), *waiting]) == [(1, 2), (0, 2)]


def start_to_shrink(torchruns: Torchruns, node: str) -> HoldfastRendezvous:
    return torchruns.start(node, most=2, shrink_to="1", resize_after="0.2")


def test_a_world_shrinks_and_grows_if_the_user_allows_it(
    torchruns: Torchruns, capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = (start_to_shrink(torchruns, node) for node in "ab")
    assert places(torchruns.meet(a, b)) == [(0, 2), (1, 2)]
    kill(a)
    assert places(torchruns.meet(b)) == [(0, 1)]
    assert "run r continues with 1 of 2 nodes: none came within 0.2 s" in capfd.readouterr().err
    leaves = start_to_shrink(torchruns, "c")
    torchruns.meet(leaves)
    wait_until(lambda: torchruns.sees("c", waiting=True), "c is seen")
    assert leaves.shutdown()
    wait_until(lambda: not torchruns.sees("c"), "c has left")
    assert b.num_nodes_waiting() == 0
    further = start_to_shrink(torchruns, "d")
    waiting = torchruns.meet(further)
    wait_until(lambda: b.num_nodes_waiting() == 1, "b is asked to restart")
    wait_until(lambda: torchruns.sees("b", waiting=True), "others hear of it before the ranks of b have ended")
    assert places([*torchruns.meet(b), *waiting]) == [(0, 2), (1, 2)]
    assert "run r continues with 2 of 2 nodes: further ones have come" in capfd.readouterr().err


def test_a_world_with_a_node_that_died_while_it_waited_is_given_up(
    torchruns: Torchruns, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("holdfast_torchrun.world_store.MEMBERS_TIMEOUT", timedelta(seconds=0.3))
    a, dying, spare = torchruns.start("a"), torchruns.start("b"), torchruns.start("c")
    torchruns.meet(dying)
    wait_until(lambda: torchruns.sees("b", waiting=True), "b waits")
    kill(dying)
    (first,) = torchruns.meet(a)  # within the time of the lease of b
    wait_until(lambda: "round 1 has failed" in capfd.readouterr().err, "a gives the world up")
    assert places([first, *torchruns.meet(spare)]) == [(0, 2), (1, 2)]


def test_a_run_that_ends_releases_its_spare(torchruns: Torchruns, capfd: pytest.CaptureFixture[str]) -> None:
    a, b, spare = torchruns.start("a"), torchruns.start("b"), torchruns.start("c")
    assert places(torchruns.meet(a, b)) == [(0, 2), (1, 2)]
    (waiting,) = torchruns.meet(spare)
    wait_until(lambda: torchruns.sees("c", waiting=True), "the spare waits")
    spare_error = a.shutdown() and waiting.exception(PATIENCE_S)
    assert isinstance(spare_error, SystemExit)
    assert spare_error.code == 0
    assert "run r has ended, this spare node was not needed" in capfd.readouterr().err
    wait_until(b.is_closed, "b sees the end")
    assert b.num_nodes_waiting() == 0
    with pytest.raises(RendezvousClosedError, match="run r has ended: torchrun on node a has left it"):
        b.next_rendezvous()


def test_a_spare_that_leaves_ends_nothing(torchruns: Torchruns, store_server: StoreServer) -> None:
    a, b = torchruns.start("a"), torchruns.start("b")
    assert places(torchruns.meet(a, b)) == [(0, 2), (1, 2)]
    spare = torchruns.start("c")
    (waiting,) = torchruns.meet(spare)
    wait_until(lambda: torchruns.sees("c", waiting=True), "the spare waits")
    assert spare.shutdown()
    assert isinstance(waiting.exception(PATIENCE_S), RendezvousClosedError)
    with store_server.client() as client:
        assert not client.hexists(keys.meeting_records("r"), "c")
    assert torchruns.sees("a")
    assert not a.is_closed()


def test_a_new_job_may_have_the_name_of_one_that_has_ended(torchruns: Torchruns) -> None:
    old = [torchruns.start(node) for node in "ab"]
    assert places(torchruns.meet(*old)) == [(0, 2), (1, 2)]
    assert [one.shutdown() for one in old] == [True, True]
    new = [torchruns.start(node) for node in "ba"]
    assert places(torchruns.meet(*new)) == [(1, 2), (0, 2)]
    assert [one.is_closed() for one in new] == [False, False]


def test_a_job_without_spares_waits_for_the_end_of_an_earlier_one(torchruns: Torchruns) -> None:
    old = [torchruns.start(node, most=2) for node in "ab"]
    assert places(torchruns.meet(*old)) == [(0, 2), (1, 2)]
    new = [torchruns.start(node, most=2) for node in "cd"]
    meetings = torchruns.meet(*new)
    wait_until(lambda: torchruns.sees("d", waiting=True), "the new job waits")
    assert old[0].shutdown()
    assert torchruns.sees("b")
    assert not any(one.done() for one in meetings)
    assert old[1].shutdown()
    assert places(meetings) == [(0, 2), (1, 2)]


def test_a_redis_that_comes_back_empty_learns_the_world_again(torchruns: Torchruns, store_server: StoreServer) -> None:
    a, b = torchruns.start("b"), torchruns.start("a")
    (first,) = torchruns.meet(a)
    wait_until(lambda: a._attendance is not None, "b waits")
    assert places([first, *torchruns.meet(b)]) == [(1, 2), (0, 2)]
    store_server.kill()
    attendance = a._attendance
    assert attendance is not None
    assert attendance.look() is None
    assert a.num_nodes_waiting() == 0
    store_server.start()
    # The look that finds it empty writes the world again, and a later one sees it.
    wait_until(lambda: (sight := attendance.look()) is not None and sight.round == 1, "the world is back")
    assert a.num_nodes_waiting() == 0
    assert places(torchruns.meet(a, b)) == [(1, 2), (0, 2)]


def test_a_node_that_waits_rings_again_after_an_outage(torchruns: Torchruns, store_server: StoreServer) -> None:
    a = torchruns.start("a")
    torchruns.meet(a)
    wait_until(lambda: torchruns.sees("a", waiting=True), "a waits")
    with store_server.client() as client:
        heard = wait_until(lambda: client.get(keys.meeting_bell("r")), "a has rung")
        assert a._attendance is not None
        a._attendance._seen_s -= 60.0  # as if it had seen nothing for that long
        wait_until(lambda: client.get(keys.meeting_bell("r")) != heard, "a rings again")


def test_what_others_write_without_the_key_forms_no_world(torchruns: Torchruns, store_server: StoreServer) -> None:
    forger = MeetingStore(store_server.client(), "r", RunKey(SECRET[::-1].replace("5", "6"), "r").seal)
    forged = MeetingRecord(node="0", process="p", address="evil", nodes=2, waiting=True)
    assert forger.claim(forged)
    a = torchruns.start("a", join_timeout="0.5")
    with pytest.raises(RendezvousTimeoutError, match=r"within 0\.5 s: a waits, 1 of 2 nodes missing"):
        a.next_rendezvous()


def test_two_nodes_of_one_name_do_not_replace_each_other(torchruns: Torchruns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast_torchrun.rendezvous.LEASE_S", 0.1)
    a = torchruns.start("a")
    torchruns.meet(a)
    wait_until(lambda: a._attendance is not None, "a waits")
    with pytest.raises(RendezvousError, match=r"node a already takes part in run r: .* node=NAME"):
        torchruns.start("a").next_rendezvous()


def unreachable(least: int, most: int) -> HoldfastRendezvous:
    made = create_rendezvous(RendezvousParameters("holdfast", "redis://127.0.0.1:1", "r", least, most, "127.0.0.1"))
    assert isinstance(made, HoldfastRendezvous)
    return made


def test_a_job_of_several_nodes_needs_redis_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RendezvousConnectionError, match=r"--rdzv-endpoint redis://127\.0\.0\.1:1: Redis"):
        unreachable(1, 2)


def test_one_node_starts_without_redis_as_often_as_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = unreachable(1, 1)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("the job starts as under plain torchrun, and is not watched")
    for number in ("1", "2"):
        info = alone.next_rendezvous()
        assert (info.rank, info.world_size, info.store.add("n", 1)) == (0, 1, 1)
        info.store.set("n", number)
    assert (alone.num_nodes_waiting(), alone.is_closed(), alone.shutdown()) == (0, False, True)


class _Watcher(NoCompanion):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def enter_world(self) -> None:
        self.heard.append("world")

    def follow_signals(self) -> None:
        self.heard.append("signals")

    def end(self, code: int) -> None:
        self.heard.append(f"end {code}")


@pytest.mark.parametrize(("error", "code"), [(None, 0), (SystemExit(0), 0), (RuntimeError("a rank failed"), 1)])
def test_the_companion_hears_of_each_world_and_how_torchrun_ends(
    error: BaseException | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = unreachable(1, 1)
    alone._companion = watcher = _Watcher()
    with contextlib.suppress(RuntimeError, SystemExit):
        try:
            alone.next_rendezvous()
            alone.num_nodes_waiting()
            if error is not None:
                raise error
        finally:
            alone.shutdown()
    assert watcher.heard == ["world", "signals", f"end {code}"]
