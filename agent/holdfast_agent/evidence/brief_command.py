"""Runs a program with a time limit, which is stretched on a node whose cores are busy."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from holdfast_base.text import reason_of

MOST_TIMES = 5.0
"""Most that a limit is stretched: the restart of the run waits for the evidence."""

_LOAD = Path("/proc/loadavg")


def stretched(limit_s: float) -> float:
    """Return a limit for this moment: N times as long while N processes share each core.

    So a limit ends only what hangs. What merely waits for a core has as much time of a core as on an idle node.
    """
    return round(limit_s * min(MOST_TIMES, max(1.0, _load() / (os.cpu_count() or 1))), 2)


def _load() -> float:
    """Return how many processes want to run: on average over a minute, or now if that is more."""
    try:
        average, _, _, now, _ = _LOAD.read_text().split()
        return max(float(average), float(now.partition("/")[0]))
    except (OSError, ValueError):
        return 0.0


_END_S = 1.0
"""Time for a killed program to end. One that hangs in a driver may never."""


class CommandFailedError(Exception):
    """The program could not be run, failed, or was too slow. The message is one line."""


async def output_of(program: "str | Path", arguments: Sequence[str], patience_s: float) -> str:
    """Return the output of a program; kill it after ``patience_s``, or later on a busy node.

    Raises CommandFailedError.
    """
    name = Path(program).name
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise CommandFailedError(f"{name} cannot be run: {reason_of(error)}") from None
    limit_s = stretched(patience_s)
    talk = asyncio.ensure_future(process.communicate())
    try:
        await asyncio.wait([talk], timeout=limit_s)
        if is_late := not talk.done():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait([talk], timeout=stretched(_END_S))
    finally:
        talk.cancel()  # if it has not ended
    # A busy agent may see the end of its patience before the end of a program that was in time.
    if not talk.done() or (is_late and process.returncode == -signal.SIGKILL):
        raise CommandFailedError(f"{name} did not answer within {limit_s:g} s")
    output, errors = talk.result()
    if process.returncode:
        said = errors.decode(errors="replace").partition("Stack backtrace")[0].strip()
        raise CommandFailedError(f"{name} failed: {said or f'exit code {process.returncode}, and it said nothing'}")
    return output.decode(errors="replace")
