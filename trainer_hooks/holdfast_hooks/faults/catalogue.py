"""Every kind of fault by name, with its settings and the verdict to expect."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast_hooks.faults import calls, corruption, process, stuck
from holdfast_hooks.faults.fault import Fault, Strike
from holdfast_hooks.phases import Phase


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """One kind of fault."""

    strike: Strike
    what: str
    """Description of what happens to the rank."""
    verdict: str
    """Verdict that Holdfast should reach."""
    takes: tuple[str, ...] = ()
    """Settings that it takes, of ``duration_s``, ``factor`` and ``seed``. The others must not be given."""
    phase: Phase | None = None
    """Phase in which it strikes if the fault names none."""
    needs_model: bool = False
    """Whether the state given to ``attach`` must have a module."""
    needs_calls: bool = False
    """Whether it needs the private names of torch by which calls are watched."""
    needs_replica: bool = False
    """Whether Holdfast sees it only if another rank holds a copy of what it changes."""


_FOR_A_WHILE = ("duration_s",)

CATALOGUE: Mapping[str, FaultKind] = {
    "kill": FaultKind(strike=process.kill, what="SIGKILL", verdict="dead rank"),
    "segfault": FaultKind(strike=process.segfault, what="reads address 0", verdict="dead rank"),
    "stop": FaultKind(strike=process.stop, what="SIGSTOP: every thread stops", verdict="hung collective: stopped"),
    "out-of-memory": FaultKind(
        strike=process.out_of_memory, what="allocates until it fails, below a lowered limit", verdict="dead rank"
    ),
    "exception": FaultKind(strike=process.raise_exception, what="raises RuntimeError", verdict="dead rank"),
    "exit-0": FaultKind(strike=process.exit_0, what="leaves too early, with exit code 0", verdict="dead rank"),
    "infinite-loop": FaultKind(
        strike=stuck.infinite_loop, takes=_FOR_A_WHILE, what="computes forever", verdict="hung collective: user code"
    ),
    "gil-held": FaultKind(
        strike=stuck.gil_held,
        takes=_FOR_A_WHILE,
        what="waits in C and holds the interpreter's lock",
        verdict="hung collective: GIL held",
    ),
    "deadlock": FaultKind(
        strike=stuck.deadlock,
        takes=_FOR_A_WHILE,
        what="waits for a lock that another thread holds",
        verdict="hung collective: lock",
    ),
    "data-stall": FaultKind(
        strike=stuck.data_stall,
        takes=_FOR_A_WHILE,
        phase=Phase.DATA,
        what="waits for a batch that does not come",
        verdict="data stall",
    ),
    "frozen-disk": FaultKind(
        strike=stuck.frozen_disk,
        takes=_FOR_A_WHILE,
        what="reads from a file that does not answer",
        verdict="hung collective: pipe",
    ),
    "slow": FaultKind(
        strike=stuck.SlowPasses,
        takes=("factor", "duration_s"),
        what="each forward and backward pass takes factor times as long",
        verdict="straggler",
    ),
    "skipped-collective": FaultKind(
        strike=calls.Skipped,
        needs_calls=True,
        what="skips one collective",
        verdict="hung collective or mismatched order",
    ),
    "extra-collective": FaultKind(
        strike=calls.Extra,
        needs_calls=True,
        what="makes one collective twice",
        verdict="hung collective or mismatched order",
    ),
    "wrong-shape": FaultKind(
        strike=calls.WrongShape,
        needs_calls=True,
        what="one collective on longer tensors",
        verdict="dead rank or mismatched order",
    ),
    "wrong-order": FaultKind(
        strike=calls.WrongOrder,
        needs_calls=True,
        what="swaps two collectives of two groups",
        verdict="mismatched order",
    ),
    "lost-message": FaultKind(
        strike=calls.LostMessage,
        needs_calls=True,
        what="a point-to-point message is never sent",
        verdict="hung collective or transport",
    ),
    "nan-gradient": FaultKind(
        strike=corruption.NanGradient,
        takes=("seed",),
        needs_model=True,
        what="a NaN in its own gradient, before any reduction",
        verdict="non-finite numbers",
    ),
    "bit-flip": FaultKind(
        strike=corruption.flip_bit,
        takes=("seed",),
        needs_model=True,
        needs_replica=True,
        what="one bit of one weight, as this rank holds it",
        verdict="silent corruption",
    ),
    "clock-jump": FaultKind(
        strike=process.ClockJump,
        takes=_FOR_A_WHILE,
        what="its wall clock jumps by the duration, back if that is negative",
        verdict="none",
    ),
}


def check(fault: Fault) -> FaultKind:
    """Return the kind of ``fault``. Raises ValueError with one line that names the setting that is wrong."""
    kind = CATALOGUE.get(fault.kind)
    if kind is None:
        raise ValueError(f"no fault is called {fault.kind!r}: `holdfast inject --list` names them all")
    for setting in ("duration_s", "factor", "seed"):
        if getattr(fault, setting) and setting not in kind.takes:
            raise ValueError(f"{fault.kind} takes no {setting}: leave it out")
    if fault.phase is Phase.INIT:
        raise ValueError("init is over before a fault can strike: name another phase")
    if fault.kind == "clock-jump":
        if not fault.duration_s:
            raise ValueError("clock-jump needs a duration_s: seconds by which the clock jumps, back if negative")
    elif fault.duration_s < 0:
        raise ValueError(f"duration_s {fault.duration_s:g}: use 0 (forever) or more")
    if fault.kind == "slow" and fault.factor <= 1:
        raise ValueError(f"slow needs a factor above 1, not {fault.factor:g}")
    return kind
