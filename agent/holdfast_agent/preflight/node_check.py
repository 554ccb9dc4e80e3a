"""Runs the program that checks the node, within a time, and reads what it finds."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

from holdfast_agent.blocking.proc_texts import clean
from holdfast_agent.preflight.company import PROGRAM
from holdfast_agent.preflight.measuring import CheckedPlaces
from holdfast_agent.preflight.outcomes import HANGS
from holdfast_proto.checks.value_rules import PATH_CHARACTERS
from holdfast_proto.limits import NAME_CHARACTERS
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import CHECKS

LIMIT_S = 20.0
"""Longest time of a check. Ranks wait for it."""

_END_S = 0.5
"""Time for a killed process to end, unless it hangs in a driver."""

MOST_OFFSET_S = 300.0
"""Offset of a clock from which on services refuse the node: Kerberos after 5 minutes, S3 after 15.

Training itself bears any offset. Below this one, only the times in its logs mislead people.
"""

_COMMAND = (sys.executable, "-P", "-m", PROGRAM)  # -P: a file of the user must not take the place of a module


async def check_node(
    places: CheckedPlaces, *, name: str = "", limit_s: float = LIMIT_S, command: Sequence[str] = _COMMAND
) -> store.NodeCheck:
    """Check this machine in a process of its own, which is killed after ``limit_s``, or if this is cancelled.

    What cannot be checked is named in ``unmeasured``: nothing is raised. ``name``: the check's id.
    """
    began_s = time.monotonic()
    reader = _Reader(store.NodeCheck(id=name))
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError as error:
        reader.leave_out(f"the check cannot be started: {error}")
    else:
        await _read(process, places, reader, limit_s)
    check = reader.check
    check.unmeasured = clean("; ".join(reader.unmeasured), NAME_CHARACTERS)
    check.took_s, check.ended_unix_s = time.monotonic() - began_s, time.time()
    return check


async def _read(process: asyncio.subprocess.Process, places: CheckedPlaces, reader: "_Reader", limit_s: float) -> None:
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(limit_s):
            process.stdin.write(json.dumps({"agent_pid": os.getpid(), **asdict(places)}).encode())
            process.stdin.close()
            async for line in process.stdout:
                reader.take(json.loads(line))
            reader.expect_end(await process.wait())
    except TimeoutError:
        reader.give_up(limit_s)
    except (ValueError, KeyError, TypeError, OSError) as error:
        reader.leave_out(f"the check makes no sense: {error!r}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_S)


class _Reader:
    """Puts together a check from the lines of the program."""

    def __init__(self, check: store.NodeCheck) -> None:
        self.check = check
        self.unmeasured: list[str] = []
        self._running = store.CHECK_KIND_UNSPECIFIED
        """The check that was begun last; CHECK_KIND_UNSPECIFIED: none runs."""
        self._begun_s = time.monotonic()
        self._has_ended = False

    def take(self, line: dict[str, Any]) -> None:
        """Take in a line. Raises ValueError, KeyError or TypeError if it makes no sense."""
        if "begins" in line:
            self._running, self._begun_s = line["begins"], time.monotonic()
        elif "failure" in line:
            self.check.failures.add(kind=line["kind"], reason=clean(line["failure"], PATH_CHARACTERS))
        elif "unmeasured" in line:
            self.leave_out(line["unmeasured"])
        elif "ended" in line:
            self._has_ended = True
        else:
            self.check.figures.add(kind=line["kind"], device=line["device"], value=line["value"])

    def leave_out(self, reason: str) -> None:
        """Note why something was not measured."""
        self.unmeasured.append(reason)

    def expect_end(self, exit_code: int) -> None:
        """Note that the program has ended before all was checked, if it has."""
        if not self._has_ended:
            self.leave_out(f"{self._name}: the check ended with exit code {exit_code}")

    def give_up(self, limit_s: float) -> None:
        """Note that the program does not end in time. That is a fault only if most of it was spent on one device."""
        waited_s = time.monotonic() - self._begun_s
        if self._running in HANGS and waited_s > limit_s / 2:
            self.check.failures.add(kind=self._running, reason=f"{self._name}: no answer within {waited_s:.0f} s")
        else:
            self.leave_out(f"{self._name}: the check did not end within {limit_s:.0f} s")

    @property
    def _name(self) -> str:
        return CHECKS[self._running].name if self._running in CHECKS else "start"


async def add_clock(check: store.NodeCheck, now_ns: Callable[[], Awaitable[int]]) -> None:
    """Add how far the node's clock is ahead of that of Redis. ``now_ns`` returns its time; 0: it is unreachable."""
    before_s = time.time()
    store_ns = await now_ns()
    after_s = time.time()
    if store_ns:
        offset_s = (before_s + after_s) / 2 - store_ns / 1e9
        check.figures.add(kind=store.CHECK_KIND_CLOCK, value=offset_s)
        reason = clock_fault(offset_s, after_s - before_s)
        if reason:
            check.failures.add(kind=store.CHECK_KIND_CLOCK, reason=reason)


def clock_fault(offset_s: float, round_trip_s: float) -> str:
    """Return what is wrong with a clock that seems ``offset_s`` ahead of that of Redis; "" if nothing is."""
    if abs(offset_s) - round_trip_s / 2 <= MOST_OFFSET_S:
        return ""
    return f"the clock is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} that of Redis"
