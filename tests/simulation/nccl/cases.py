"""Draws random cases: a program, a fault, how ranks are set up, and what can be read of them afterwards."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from tests.simulation.nccl.communicators import Break
from tests.simulation.nccl.documents import STARTED_NS, VERSIONS, Document, Form, clock_ns, document
from tests.simulation.nccl.evidence import Truth, View, judge_evidence
from tests.simulation.nccl.fault import Fault
from tests.simulation.nccl.faults import FAULTS
from tests.simulation.nccl.machine import Machine, Settings
from tests.simulation.nccl.programs import LAYOUTS, random_program
from tests.simulation.nccl.stacks import stack

_ATTEMPTS = 200
_WEIGHTS = {"healthy": 3, "busy": 3, "skipped": 2, "dead": 2, "several": 4, "unfinished_call": 2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a detector is given, and the truth, which it must not look at."""

    name: str
    """Seed of the case: ``one_case(name, ...)`` draws it again."""
    layout: str
    world_size: int
    documents: dict[int, Document | None]
    """Dumps by global rank. None: the rank gave none."""
    earlier: dict[int, Document | None]
    """Dumps some seconds before, of the same form. A hang shows no change between the two."""
    taken_ns: dict[int, int]
    """Wall clock of each rank at its dump."""
    stacks: dict[int, str]
    """Text of py-spy by rank. It may be empty, or lack ranks."""
    dead: frozenset[int]
    """Ranks that the supervisor knows to be dead."""
    truth: Truth
    machine: Machine
    """For people who look into a case. No detector may read it."""


def cases(seed: int, count: int, kinds: Sequence[str] = (), most_ranks: int = 64) -> Iterator[Case]:
    """Yield random cases. The same arguments give the same cases.

    Args:
        seed: Start of all random choices.
        count: Number of cases.
        kinds: Kinds of faults to draw from. Empty: all of ``FAULTS``.
        most_ranks: Largest world.
    """
    for number in range(count):
        yield one_case(f"{seed}/{number}", kinds, most_ranks)


def one_case(seed: str, kinds: Sequence[str] = (), most_ranks: int = 64) -> Case:
    """Return one case. Programs that end in spite of their fault are drawn again."""
    chance = random.Random(f"kind {seed}")
    names = list(kinds or FAULTS)
    kind = chance.choices(names, [_WEIGHTS.get(name, 1) for name in names])[0]
    for attempt in range(_ATTEMPTS):
        chance = random.Random(f"case {seed} {attempt}")
        found = _hang(kind, chance, most_ranks)
        if found is not None:
            return _observed(seed, *found, chance)
    raise RuntimeError(f"no program hangs with the fault {kind} in {_ATTEMPTS} tries")


def _hang(kind: str, chance: random.Random, most_ranks: int) -> tuple[Machine, Fault, str] | None:
    """Run a program with a fault. Return None if it cannot have the fault, or ends in spite of it."""
    inject, layouts = FAULTS[kind]
    program = random_program(chance.getrandbits(32), chance.choice(layouts or LAYOUTS), most_ranks)
    version = chance.choices(VERSIONS, (1, 1, 1, 1, 6))[0]
    settings = Settings(
        eager_init=chance.random() < 0.4,
        blocking_wait=chance.random() < 0.05,
        launch_limit=chance.choice((1000, 1000, 1000, 100, 40)),
        eager_numel=chance.choice((0, 0, 1000)),
        records_members=int(version.split(".")[1]) >= 7,
    )
    timed = random_fault_time(chance)
    fault = inject(program, chance)
    if fault is None:
        return None
    settings = replace(settings, **fault.needs)  # type: ignore[arg-type]
    dies_s: dict[int, float] = {}
    broken: dict[int, Break] = {}
    if fault.dies or fault.broken_group is not None:
        at_s = timed * Machine(program, settings).run().end_s
        dies_s = dict.fromkeys(fault.dies, at_s)
        if fault.broken_group is not None:
            broken[fault.broken_group] = (at_s, fault.broken_pair)
    machine = Machine(program, settings, dies_s=dies_s, broken=broken).run()
    if machine.finished != (kind == "healthy"):
        return None
    return machine, fault, version


def random_fault_time(chance: random.Random) -> float:
    """Return when a fault begins, as a part of the time that the program takes without it."""
    return chance.uniform(0.1, 0.8)


def _observed(name: str, machine: Machine, fault: Fault, version: str, chance: random.Random) -> Case:
    """Read the ranks of a machine."""
    size, end_s = machine.program.world_size, machine.end_s
    if fault.kind == "healthy":
        second_s = end_s * chance.uniform(0.2, 0.95)
        first_s = max(0.0, second_s - chance.uniform(0.5, 5.0))
    else:
        first_s = end_s + chance.uniform(0.5, 300.0)
        second_s = first_s + chance.uniform(2.0, 60.0)
    forms = _forms(size, end_s, version, chance)
    skew_s = {rank: chance.uniform(0.0, 0.3) for rank in range(size)}
    silent = set(fault.silent)
    if chance.random() < 0.15:
        silent.update(chance.sample(range(size), chance.randint(1, max(1, size // 4))))
    readable = frozenset(range(size)) - silent
    at_s = {rank: second_s + skew_s[rank] for rank in range(size)}
    stacks = _stacks(machine, fault, at_s, chance)
    view = View(machine, forms, at_s, readable, fault.dead)
    return Case(
        name=name,
        layout=machine.program.layout,
        world_size=size,
        documents=_documents(machine, forms, at_s, readable),
        earlier=_documents(machine, forms, {rank: first_s + skew_s[rank] for rank in range(size)}, readable),
        taken_ns={rank: clock_ns(forms[rank], at_s[rank]) for rank in range(size)},
        stacks=stacks,
        dead=fault.dead,
        truth=judge_evidence(view, fault, stacks=len(stacks) == size),
        machine=machine,
    )


def _documents(
    machine: Machine, forms: dict[int, Form], at_s: dict[int, float], readable: frozenset[int]
) -> dict[int, Document | None]:
    return {
        rank: document(recorder, forms[rank], at_s[rank]) if rank in readable else None
        for rank, recorder in enumerate(machine.recorders)
    }


def _forms(size: int, end_s: float, version: str, chance: random.Random) -> dict[int, Form]:
    """Draw how recorders are set, and how they are read."""
    shared = Form(
        pickled=chance.random() < 0.4,
        version=version,
        ring=chance.choices((2000, 200, 100, 50, 20, 0), (12, 4, 3, 3, 3, 1))[0],
        timing=chance.random() < 0.4,
        only_active=chance.random() < 0.3,
        with_entries=chance.random() > 0.08,
        with_frames=chance.random() < 0.3,
        timeout_ms=chance.choice((600_000, 600_000, 1_800_000)),
    )
    stuck = chance.randrange(size) if chance.random() < 0.1 else None
    forms = {}
    for rank in range(size):
        forms[rank] = replace(
            shared,
            watchdog_phase_s=chance.uniform(0.0, 0.1),
            watchdog_stuck_s=chance.uniform(0.0, end_s) if rank == stuck else inf,
            wall_ns=STARTED_NS + chance.randrange(-2_000_000, 2_000_000),  # clocks of nodes differ a little
        )
    return forms


def _stacks(machine: Machine, fault: Fault, at_s: dict[int, float], chance: random.Random) -> dict[int, str]:
    if chance.random() < 0.5:
        return {}
    gone = fault.dies | fault.dead
    taken = [rank for rank in range(machine.program.world_size) if rank not in gone]
    if chance.random() < 0.2:
        taken = chance.sample(taken, len(taken) // 2)
    return {rank: stack(machine, rank, at_s[rank]) for rank in sorted(taken)}
