"""The program that checks the node: ``python -P -m holdfast_agent.preflight.measuring``.

It reads what to look at as one JSON document on stdin, see :class:`CheckedPlaces`, and writes one JSON line on stdout
for each thing that it begins or finds, see :class:`Findings`. So its reader knows in which check it hangs: a device may
hang for good, and then this process cannot even be killed. It ends with its parent. ``node_check.py`` is the other end.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_agent.devices.gpu import Gpu
from holdfast_agent.preflight import gpu_state, links, storage
from holdfast_agent.preflight.company import company, load_note
from holdfast_agent.preflight.outcomes import NodeFaultError, UnmeasuredError
from holdfast_agent.snapshots.memory_room import memory_room
from holdfast_base.processes import name_process
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import CHECKS

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class CheckedPlaces:
    """The parts of this machine that a run uses."""

    folders: tuple[str, ...]
    """Folders that ranks or the agent write to. One that does not exist is not checked."""
    shm_directory: str
    address: str
    """Name or address at which other nodes reach this one."""
    system_root: str = "/"
    """Root of the file system with the files of drivers and the kernel."""


class Findings:
    """Writes what is found, as JSON lines: a check begins, a figure, a fault, a reason for no figure, the end."""

    def __init__(self, write: Callable[[dict[str, Any]], object]) -> None:
        self._write = write

    def check(self, kind: store.CheckKind, measure: Callable[[], float | None], device: int = 0) -> bool:
        """Make one check; return whether it found no fault. It has no figure if ``measure`` returns None."""
        self.begin(kind)
        try:
            figure = measure()
        except NodeFaultError as error:
            self.fail(kind, str(error))
            return False
        except UnmeasuredError as error:
            self.leave_out(kind, str(error))
        except Exception as error:  # noqa: BLE001  one check must not prevent the others
            self.leave_out(kind, repr(error))
        else:
            if figure is not None:
                self._write({"kind": kind, "device": device, "value": figure})
        return True

    def begin(self, kind: store.CheckKind) -> None:
        """Say which check runs from now on; CHECK_KIND_UNSPECIFIED: none, but one is prepared."""
        self._write({"begins": kind})

    def fail(self, kind: store.CheckKind, reason: str) -> None:
        """Report a fault of the node."""
        self._write({"kind": kind, "failure": reason})

    def leave_out(self, kind: store.CheckKind, reason: str) -> None:
        """Report why a check has no figure; CHECK_KIND_UNSPECIFIED: why no speed is measured."""
        self._write({"unmeasured": f"{CHECKS[kind].name}: {reason}" if kind else reason})

    def end(self) -> None:
        """Report that all checks were made."""
        self._write({"ended": True})


def check_all(places: CheckedPlaces, agent_pid: int, findings: Findings) -> None:
    """Make all checks. ``agent_pid``: the process whose ancestors and descendants may use this machine."""
    root = Path(places.system_root)
    gpus = _look_at_gpus(root, findings)
    others = company(root / "proc", agent_pid, {gpu.index: gpu.pids or () for gpu in gpus}) or load_note(root / "proc")
    folders, shm = [Path(folder) for folder in places.folders], Path(places.shm_directory)
    if others:
        findings.leave_out(store.CHECK_KIND_UNSPECIFIED, others)
        findings.check(store.CHECK_KIND_DISK, lambda: _no_figure(storage.disk(folders, storage.TINY_BYTES)))
        findings.check(store.CHECK_KIND_SHM, lambda: _no_figure(storage.shared_memory(shm, storage.TINY_BYTES)))
    else:
        findings.check(store.CHECK_KIND_DISK, lambda: storage.disk(folders))
        findings.check(store.CHECK_KIND_SHM, lambda: storage.shared_memory(shm))
        findings.check(store.CHECK_KIND_LOOPBACK, links.loopback)
        _measure_processors(findings, shm, gpus)
    findings.check(store.CHECK_KIND_NETWORK, lambda: links.network(places.address, root))
    findings.end()


def _no_figure(_: float | None) -> None:
    """Drop a speed that was measured with too few bytes."""


def _look_at_gpus(root: Path, findings: Findings) -> list[Gpu]:
    found: list[Gpu] = []
    try:
        if not gpu_state.open_driver(root):
            return found
        findings.begin(store.CHECK_KIND_GPU_STATE)
        found = gpu_state.read_gpus()
    except (UnmeasuredError, ValueError, KeyError) as error:
        findings.leave_out(store.CHECK_KIND_GPU_STATE, str(error))
    for gpu in found:
        for fault in gpu_state.gpu_faults(gpu):
            findings.fail(store.CHECK_KIND_GPU_STATE, fault)
    findings.begin(store.CHECK_KIND_UNSPECIFIED)
    return found


def _measure_processors(findings: Findings, shm: Path, gpus: list[Gpu]) -> None:
    findings.begin(store.CHECK_KIND_UNSPECIFIED)
    try:
        from holdfast_agent.preflight import processors  # it imports torch, which takes a second
    except ImportError as error:
        findings.leave_out(store.CHECK_KIND_UNSPECIFIED, f"torch cannot be imported: {error}")
        return
    processors.use_all_cores()
    findings.check(store.CHECK_KIND_CPU_GEMM, processors.cpu_gemm)
    findings.check(store.CHECK_KIND_CPU_MEMORY, lambda: processors.cpu_memory(memory_room(shm).free_bytes))
    findings.begin(store.CHECK_KIND_UNSPECIFIED)  # CUDA may take long to find all GPUs, and that is no fault
    try:
        devices = processors.gpus()
        numbers = [processors.gpu_number(device, [gpu.uuid for gpu in gpus]) for device in range(devices)]
    except (UnmeasuredError, RuntimeError) as error:
        findings.leave_out(store.CHECK_KIND_UNSPECIFIED, str(error))
        return
    for device, number in enumerate(numbers):
        if not _measure_gpu(findings, device, number):
            return  # after an error of CUDA, what this process sees of other GPUs means nothing


def _measure_gpu(findings: Findings, device: int, number: int) -> bool:
    """Check what a GPU computes and copies; return whether no fault was found. ``number``: its number on the node."""
    from holdfast_agent.preflight import processors

    findings.begin(store.CHECK_KIND_UNSPECIFIED)  # the first use loads libraries
    try:
        processors.open_gpu(device, number)
    except NodeFaultError as error:
        findings.fail(store.CHECK_KIND_GPU_GEMM, str(error))
        return False
    except UnmeasuredError as error:
        findings.leave_out(store.CHECK_KIND_UNSPECIFIED, str(error))
        return True
    return findings.check(
        store.CHECK_KIND_GPU_GEMM, lambda: processors.gpu_gemm(device, number), number
    ) and findings.check(store.CHECK_KIND_GPU_MEMORY, lambda: processors.gpu_memory(device, number), number)


def main() -> int:
    """Check the node that stdin describes; return an exit code."""
    # A library that prints to stdout would corrupt the lines, so they get a descriptor of their own.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    document = json.load(sys.stdin)
    agent_pid = document.pop("agent_pid")
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent_pid:
        return 1  # it ended before the call above
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group: the agent handles it
    name_process("holdfast-check")
    check_all(CheckedPlaces(**document), agent_pid, Findings(lambda line: print(json.dumps(line), file=lines)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
