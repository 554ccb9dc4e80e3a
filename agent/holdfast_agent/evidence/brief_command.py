"""Runs a program with a time limit."""

import asyncio
from collections.abc import Sequence
from pathlib import Path


class CommandFailedError(Exception):
    """The program could not be run, failed, or was too slow. The message is one line."""


async def output_of(program: "str | Path", arguments: Sequence[str], patience_s: float) -> str:
    """Return the output of a program; kill it after ``patience_s``. Raises CommandFailedError."""
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
        raise CommandFailedError(f"{name} cannot be run: {error}") from None
    try:
        output, errors = await asyncio.wait_for(process.communicate(), patience_s)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise CommandFailedError(f"{name} did not answer within {patience_s:g} s") from None
    if process.returncode:
        raise CommandFailedError(f"{name} failed: {errors.decode(errors='replace').partition('Stack backtrace')[0]}")
    return output.decode(errors="replace")
