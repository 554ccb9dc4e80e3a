"""The nodes that observe one run together, as Redis holds them."""

import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis
from google.protobuf.message import DecodeError

from holdfast_cli.errors import CommandError, SettingsError
from holdfast_cli.local_run.store import key_of, live_nodes, publish_run
from holdfast_proto import keys
from holdfast_proto.run_key import ForgedError, RunKeyFile
from holdfast_proto.v1.store_pb2 import CoordinatorState, RunSpec
from holdfast_proto.vocabulary import ENDED

LEASE_S = 5.0
"""Time after which a node that does not renew its lease counts as gone."""
JOIN_PATIENCE_S = 15.0
"""Longest wait for what an earlier run of the name has left: its leases end by themselves."""
_PAUSE_S = 0.2
_BEGIN_MS = 5000
_FORGET_S = 3600
"""Time after which Redis forgets the nodes of a run that nobody observes."""


class Membership:
    """One node among those that observe a run.

    The first of them begins the run, with its settings. The others join it. Every method raises redis.RedisError if
    Redis is unreachable.
    """

    def __init__(self, client: "redis.Redis", run: str, node: str, key_file: RunKeyFile) -> None:
        self._client: Any = client  # redis-py types its answers for the asynchronous client too
        self._run = run
        self._node = node
        self._key_file = key_file
        self._clock_lead_s = 0.0
        """Time of Redis less this process's monotonic time: leases do not depend on the clocks of the nodes."""

    def join(self, spec: RunSpec, check: Callable[[], None]) -> RunSpec:
        """Become one of the run's observers and return its spec: ``spec``, or that of the node that was first.

        ``check`` is called while waiting. An exception from it ends the wait. Raises SettingsError if another run
        or another node has the name, or if the nodes disagree on their number.
        """
        seconds, microseconds = self._client.time()
        self._clock_lead_s = seconds + microseconds / 1e6 - time.monotonic()
        deadline = time.monotonic() + JOIN_PATIENCE_S
        while True:
            joined, obstacle = self._try(spec)
            if joined is not None:
                return joined
            if time.monotonic() > deadline:
                raise SettingsError(obstacle)
            check()
            time.sleep(_PAUSE_S)

    def renew(self) -> list[str]:
        """Renew this node's lease; return the names of all nodes that observe the run, sorted."""
        key, now_s = keys.observers(self._run), self._now_s()
        pipeline = self._client.pipeline(transaction=False)
        pipeline.zadd(key, {self._node: now_s + LEASE_S})
        pipeline.expire(key, _FORGET_S)
        pipeline.zrangebyscore(key, now_s, "+inf")
        return _names(pipeline.execute()[-1])

    def leave(self) -> None:
        """Give the lease up."""
        self._client.zrem(keys.observers(self._run), self._node)

    def _now_s(self) -> float:
        return time.monotonic() + self._clock_lead_s

    def _try(self, spec: RunSpec) -> tuple[RunSpec | None, str]:
        """Return the spec of the run that this node has joined; else None, and what is in the way."""
        present = self._present()
        if self._node in present:
            return None, (
                f"a node {self._node} already observes run {self._run}: give each node a name of its own with --node"
            )
        found = self._spec(others=present)
        if present and found is not None and not self._has_ended(found):
            if found.nodes != spec.nodes:
                raise SettingsError(
                    f"--nodes {spec.nodes}: {', '.join(present)} began run {self._run} with --nodes {found.nodes}: "
                    "give all nodes the same number"
                )
            if found.on_hang != spec.on_hang:
                raise SettingsError(
                    f"--on-hang: {', '.join(present)} began run {self._run} with another value: give all nodes the same"
                )
            if found.restores != spec.restores:
                raise SettingsError(
                    f"--restore: {', '.join(present)} began run {self._run} {'with' if found.restores else 'without'}"
                    " it: give all nodes the same"
                )
            self.renew()
            return found, ""
        if present:
            return None, (
                f"run {self._run} has ended, and is still observed by {', '.join(present)}: end that, or choose"
                " another --run"
            )
        return self._begin(spec)

    def _begin(self, spec: RunSpec) -> tuple[RunSpec | None, str]:
        """Begin the run, if no other node does so now."""
        key, token = keys.beginner(self._run), secrets.token_hex(8)
        if not self._client.set(key, token, nx=True, px=_BEGIN_MS):
            return None, f"another node has begun run {self._run} and has not finished: start this one again"
        try:
            if self._present():
                return None, f"another node begins run {self._run}"
            alive = live_nodes(self._client, self._run)
            if alive:
                return None, (
                    f"run {self._run} already runs on {', '.join(alive)} with this Redis: choose another --run"
                )
            publish_run(self._client, spec, self._key_file, self._key_file.make)
            self.renew()
        finally:
            if self._client.get(key) == token.encode():
                self._client.delete(key)
        return spec, ""

    def _present(self) -> list[str]:
        names = self._client.zrangebyscore(keys.observers(self._run), self._now_s(), "+inf")
        return _names(names)

    def _spec(self, others: list[str]) -> RunSpec | None:
        """Return the spec of the observed run of this name; None: there is none. ``others``: nodes that observe it."""
        data, place = self._client.get(keys.spec(self._run)), keys.spec(self._run)
        seal = key_of(self._key_file, self._key_file.make).seal
        try:
            spec = RunSpec.FromString(seal.open(place, data).content) if data else None
        except ForgedError as error:
            if not others:  # what an earlier run has left
                return None
            raise SettingsError(
                f"{', '.join(others)} began run {self._run} with another key than {self._key_file.path} ({error}):"
                " give all nodes the same with --run-key-file, or choose another --run"
            ) from None
        except DecodeError:
            raise CommandError(
                f"run {self._run} has a spec in Redis that this version cannot read: choose another --run"
            ) from None
        return None if spec is None or spec.command else spec

    def _has_ended(self, spec: RunSpec) -> bool:
        data, place = self._client.get(keys.state(self._run)), keys.state(self._run)
        seal = self._key_file.read().seal_of(spec.instance)
        try:
            return bool(data) and CoordinatorState.FromString(seal.open(place, data).content).phase in ENDED
        except (DecodeError, ForgedError):
            return False


def _names(found: Iterable[bytes]) -> list[str]:
    """Return those that nodes can have, sorted. They are not signed, and will be shown."""
    names = (name.decode(errors="replace") for name in found)
    return sorted(name for name in names if keys.RUN_NAME.fullmatch(name))
