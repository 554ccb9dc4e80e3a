"""Somebody who can write to the run's Redis, and has no key: he forges and replays all that passes through it.

He can stop the monitoring, and nothing else. While he only writes among the others, he does not even do that.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast_cli.control import rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.supervised_folder import NODE
from holdfast_proto import keys
from holdfast_proto.run_files import process_log
from holdfast_proto.state_value import write_state
from holdfast_proto.v1 import store_pb2 as store
from tests.chaos.conftest import STEPS, Runs, faults, finish, until, until_step

pytestmark = pytest.mark.system

NAME = "rogue"
FENCE = 2**52
PAUSE_S = 0.1
"""Time between two strikes: between them the run's own processes write, too."""
FLOOD = 20
"""Entries that a strike adds to each stream."""
REMEMBERED = 500
LONG = 4000


def forged(instance: str, mark: Path) -> dict[str, bytes | str]:
    """Return a harmful value for each key that holds one. A spec that is obeyed makes the file ``mark``."""
    lost = store.RankState(rank=0, life=store.LIFE_EXITED, exit=store.RankExit(signal=9, exited_unix_s=time.time()))
    state = store.NodeState(run=NAME, node=NODE, instance=instance, generation=1, stopped=True, ranks=[lost])
    record = store.CoordinatorState(run=NAME, phase=store.RUN_PHASE_FAILED, generation=9, outcome="stopped")
    spec = store.RunSpec(run=NAME, nodes=1, ranks_per_node=4, command=["touch", str(mark)], instance=instance)
    return {
        keys.spec(NAME): spec.SerializeToString(),
        keys.leader(NAME): f"usurper {FENCE}",
        keys.fence(NAME): str(FENCE),
        keys.state(NAME): record.SerializeToString(),
        keys.node(NAME, NODE): write_state(state),
        **{keys.rendezvous(NAME, generation): "127.0.0.1:1" for generation in range(1, 9)},
    }


def forged_entries(instance: str) -> dict[str, list[dict[Any, Any]]]:
    """Return harmful entries for each stream."""
    now = time.time()
    events = [
        store.Event(node=NODE, generation=1, unix_s=now, launcher_end=store.LauncherEnd(code=0)),
        store.Event(
            node=NODE, generation=1, unix_s=now, rank_exited=store.RankExited(rank=1, exit=store.RankExit(signal=9))
        ),
    ]
    kinds: list[dict[str, Any]] = [
        {"finish": store.FinishRun(outcome="stopped")},
        {"stop": store.StopGeneration()},
        {"leave": store.LeaveAt(step=1)},
    ]
    commands = [store.NodeCommand(id="x", fence=FENCE, generation=1, instance=instance, **kind) for kind in kinds]
    return {
        keys.events(NAME): [{"event": event.SerializeToString()} for event in events],
        keys.commands(NAME, NODE): [{"command": command.SerializeToString()} for command in commands],
    }


class Rogue:
    """Writes again what it has seen, and what it forges."""

    def __init__(self, local: LocalRun, mark: Path) -> None:
        self._client: Any = redis.Redis.from_url(local.store_url)
        self._instance = local.folder.instance
        self._mark = mark
        self._dice = random.Random(7)
        self._values: list[tuple[str, bytes]] = []
        self._entries: list[tuple[str, dict[Any, Any]]] = []
        self.writes = 0

    def look(self) -> None:
        """Remember what is there now."""
        for key in forged(self._instance, self._mark):
            if data := self._client.get(key):
                self._values.append((key, data))
        for key in (keys.events(NAME), keys.commands(NAME, NODE)):
            self._entries += [(key, fields) for _, fields in self._client.xrevrange(key, count=FLOOD)]
        del self._values[:-REMEMBERED], self._entries[:-REMEMBERED]

    def strike(self) -> None:
        """Write once under each key, and flood the streams."""
        pipeline = self._client.pipeline(transaction=False)
        values: list[tuple[str, Any]] = [*self._values]
        if self._dice.random() < 0.5:
            values = [*forged(self._instance, self._mark).items()]
        for key, value in values:
            pipeline.set(key, value)
        pipeline.hset(keys.incidents(NAME), "0001-forged", store.Incident(id="0001-forged").SerializeToString())
        pipeline.sadd(keys.nodes(NAME), "forged")
        pipeline.sadd(keys.RUNS, "forged")
        for key, entries in forged_entries(self._instance).items():
            seen = [fields for place, fields in self._entries if place == key]
            for fields in self._dice.choices([*entries, *seen], k=FLOOD):
                pipeline.xadd(key, fields, maxlen=10_000)
        self.writes += len(pipeline.execute())


@contextlib.contextmanager
def striking(rogue: Rogue) -> Iterator[None]:
    """Let it look and strike until the block ends."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(PAUSE_S):
            with contextlib.suppress(redis.RedisError):  # Redis ends with the run
                rogue.look()
                rogue.strike()

    with ThreadPoolExecutor(max_workers=1) as pool:
        working = pool.submit(work)
        try:
            yield
        finally:
            is_over.set()
            working.result()


def calm(runs: Runs, steps: int) -> Path:
    """Return the final checkpoint of an undisturbed run of this length."""
    name = f"calm-{steps}"
    with runs.run(name, steps=steps, hurry=True) as local:
        local.wait(timeout_s=900)
    return runs.final_checkpoint(name, steps - 1)


@pytest.mark.gate
@pytest.mark.safety
@pytest.mark.parametrize(
    ("steps", "seconds"),
    [(STEPS, 0.0), pytest.param(LONG, 600.0, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_forged_and_replayed_values_change_neither_weights_nor_verdicts(
    runs: Runs, tmp_path: Path, request: pytest.FixtureRequest, steps: int, seconds: float
) -> None:
    expected = request.getfixturevalue("undisturbed") if steps == STEPS else calm(runs, steps)
    with runs.run(NAME, steps=steps) as local:
        until_step(local, 3)
        rogue = Rogue(local, tmp_path / "obeyed")
        ends_s = time.monotonic() + seconds
        with striking(rogue):
            begun = until_step(local, 6)
            assert (begun.restarts, faults(local)) == (0, [])
            os.kill(rank_pids(begun)[2], signal.SIGKILL)
            until(local, lambda status: status.restarts == 1 and status.newest_step > begun.newest_step + 2)
            while time.monotonic() < ends_s and (reached := local.status().newest_step) < steps - 9:
                until_step(local, reached + 1)
            runs.hurry(NAME)
            local.wait(timeout_s=1800)
            status = finish(local, expected, runs, NAME, step=steps - 1)
        assert status.restarts == 1
        assert rogue.writes > 0
        for name in ("daemon", "agent"):
            assert "it is not signed" in process_log(local.paths.directory, name).read_text()
        (incident,) = faults(local)
        assert (list(incident.verdict.culprits), incident.verdict.kind) == ([2], store.VERDICT_KIND_DEAD_RANK)
        assert not (tmp_path / "obeyed").exists()
