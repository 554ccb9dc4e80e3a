"""Runs the process that reads the GPUs, and leaves it when it hangs."""

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable

from holdfast_agent.devices.gpu import GpuSample, sample_of

log = logging.getLogger(__name__)

SILENCE_S = 10.0
"""Longest wait for a sample. Then the driver counts as one that does not answer."""

PAUSE_S = 60.0
"""Pause before a process that has failed is started again."""

_END_S = 0.5
"""Time for a killed process to end, unless it hangs in the driver."""

_LINE_BYTES = 1 << 20


def has_nvml() -> bool:
    """Whether the Python package for NVML is installed. It is not imported here."""
    return importlib.util.find_spec("pynvml") is not None


class ProbeClient:
    """Starts the probe, and again when it has ended. Never waits for one that hangs, and starts no second one then.

    Args:
        on_sample: is called with each sample.
        on_silence: is called when samples stay away.
        refuse: is called with the reason why a line of the probe makes no sense.
    """

    def __init__(
        self,
        on_sample: Callable[[GpuSample], None],
        on_silence: Callable[[], None],
        refuse: Callable[[str], object],
        *,
        silence_s: float = SILENCE_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._on_sample = on_sample
        self._on_silence = on_silence
        self._refuse = refuse
        self._silence_s = silence_s
        self._pause_s = pause_s
        self._failure = ""
        self._process: asyncio.subprocess.Process | None = None

    def ask(self) -> None:
        """Have the probe take a sample now."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(b"\n")

    async def run(self) -> None:
        """Keep a probe running until cancelled."""
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a file of the user in the working directory must not take the place of a module
                "-m",
                "holdfast_agent.devices.probe",
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_LINE_BYTES,
            )
            self._process = process
            try:
                await self._read(process)
            finally:
                self._process = None
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _END_S)
            self._on_silence()
            await process.wait()  # in the driver it may hang for good, and then there is no use in another one
            await asyncio.sleep(self._pause_s)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Read samples until the process ends or says nothing for too long."""
        assert process.stdout is not None
        while True:
            try:
                line = await asyncio.wait_for(process.stdout.readline(), self._silence_s)
            except TimeoutError:
                self._log_once(f"no answer from the driver of the GPUs for {self._silence_s:.0f} s")
                return
            except ValueError:
                self._refuse("a line that is too long")
                return
            if not line:
                return
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            document = json.loads(line)
            if isinstance(document, dict) and "failure" in document:
                self._log_once(f"the GPUs cannot be read through NVML: {str(document['failure'])[:200]}")
                return
            sample = sample_of(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._refuse(f"a sample of the GPUs: {error!r}")
            return
        self._failure = ""
        self._on_sample(sample)

    def _log_once(self, failure: str) -> None:
        if failure != self._failure:
            log.warning("%s; training is not affected", failure)
        self._failure = failure
