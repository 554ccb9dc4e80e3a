"""Puts a random fault into a healthy program. Who is at fault is known here, and from nothing that is recorded."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tests.simulation.nccl.actions import (
    FOREVER,
    Action,
    Collective,
    Kernel,
    Message,
    Messages,
    NewGroups,
    Program,
    Python,
    Replay,
    Wait,
)

LARGE = 1 << 30
"""Elements of a message that no buffer of NCCL takes."""


@dataclass
class Fault:
    """A fault and who is to blame for it."""

    kind: str
    culprits: frozenset[int] = frozenset()
    """Ranks to blame. Empty: no rank is (a network, the program as a whole, or no fault at all)."""
    silent: frozenset[int] = frozenset()
    """Ranks that give no dump."""
    dead: frozenset[int] = frozenset()
    """Ranks that are known to be dead."""
    dies: frozenset[int] = frozenset()
    """Ranks that are killed at a random time."""
    broken_group: int | None = None
    broken_pair: tuple[int, int] | None = None
    needs: dict[str, object] = field(default_factory=dict)
    """Settings of the machine without which the fault does not exist."""
    closed: bool = False
    """Whether no evidence may lead to a rank, unless device timing does."""
    both_sides: bool = False
    """Whether evidence has two sides, neither of which is shown to be right."""


Injector = Callable[[Program, random.Random], Fault | None]


def _body(program: Program, rank: int) -> range:
    """Return the indices of a rank's actions in training, without the first and the last part."""
    actions = program.ranks[rank]
    first = max((i for i, action in enumerate(actions) if isinstance(action, NewGroups)), default=0) + 3
    return range(min(first, len(actions) - 2), max(first + 1, len(actions) * 17 // 20))


def _pick(program: Program, chance: random.Random, wanted: Callable[[Action], bool]) -> tuple[int, int] | None:
    """Return a rank and the index of a wanted action of it."""
    ranks = list(range(program.world_size))
    chance.shuffle(ranks)
    for rank in ranks:
        fitting = [index for index in _body(program, rank) if wanted(program.ranks[rank][index])]
        if fitting:
            return rank, chance.choice(fitting)
    return None


def _is_call(action: Action) -> bool:
    return isinstance(action, Collective)


def _stop(program: Program, chance: random.Random, place: str) -> int:
    """Stop a rank's host somewhere. Return the rank."""
    rank = chance.randrange(program.world_size)
    program.ranks[rank].insert(chance.choice(_body(program, rank)), Python(FOREVER, place))
    return rank


def busy(program: Program, chance: random.Random) -> Fault:
    """Keep a rank in Python."""
    return Fault("busy", frozenset({_stop(program, chance, "user")}))


def two_busy(program: Program, chance: random.Random) -> Fault:
    """Keep two ranks in Python, in places that have nothing to do with each other."""
    ranks = {_stop(program, chance, "user"), _stop(program, chance, "user")}
    return Fault("two_busy", frozenset(ranks))


def data_loader(program: Program, chance: random.Random) -> Fault | None:
    """Let the data loader of a rank deliver nothing."""
    found = _pick(program, chance, lambda action: isinstance(action, Python) and action.place == "data")
    if found is None:
        return None
    rank, index = found
    program.ranks[rank][index] = Python(FOREVER, "data")
    return Fault("data_loader", frozenset({rank}))


def skipped(program: Program, chance: random.Random) -> Fault | None:
    """Let a rank leave a collective out."""
    found = _pick(program, chance, _is_call)
    if found is None:
        return None
    rank, index = found
    del program.ranks[rank][index]
    return Fault("skipped", frozenset({rank}))


def other_op(program: Program, chance: random.Random) -> Fault | None:
    """Let a rank call another collective than its peers."""
    found = _pick(program, chance, lambda action: isinstance(action, Collective) and not action.coalesced)
    if found is None:
        return None
    rank, index = found
    call = program.ranks[rank][index]
    assert isinstance(call, Collective)
    op = "broadcast" if call.op != "broadcast" else "all_reduce"
    program.ranks[rank][index] = replace(call, op=op, fits=(op, *call.fits[1:]))
    return Fault("other_op", frozenset({rank}), both_sides=True)


def other_size(program: Program, chance: random.Random) -> Fault | None:
    """Let a rank call a collective with another size."""
    found = _pick(
        program,
        chance,
        lambda action: isinstance(action, Collective) and len(action.fits) > 1 and not action.coalesced,
    )
    if found is None:
        return None
    rank, index = found
    call = program.ranks[rank][index]
    assert isinstance(call, Collective)
    inputs = tuple(tuple(size + 7 for size in shape) for shape in call.inputs)
    outputs = tuple(tuple(size + 7 for size in shape) for shape in call.outputs)
    program.ranks[rank][index] = replace(call, inputs=inputs, outputs=outputs, fits=(*call.fits, "other"))
    return Fault("other_size", frozenset({rank}), both_sides=True)


def opposite_order(program: Program, chance: random.Random) -> Fault | None:
    """Let a rank call two collectives of two groups in the opposite order. The groups share another rank."""
    ranks = list(range(program.world_size))
    chance.shuffle(ranks)
    for rank in ranks:
        actions = program.ranks[rank]
        calls = [index for index in _body(program, rank) if isinstance(actions[index], Collective)]
        pairs = [pair for pair in pairwise(calls) if _crosses(program, actions, *pair)]
        if pairs:
            first, second = chance.choice(pairs)
            call = actions.pop(second)
            actions.insert(first, call)
            return Fault("opposite_order", frozenset({rank}), both_sides=True)
    return None


def _crosses(program: Program, actions: list[Action], first: int, second: int) -> bool:
    """Return whether two calls are of different groups that share two ranks, with no message in between."""
    one, other = actions[first], actions[second]
    if not isinstance(one, Collective) or not isinstance(other, Collective) or one.group == other.group:
        return False
    shared = set(program.groups[one.group].members) & set(program.groups[other.group].members)
    return len(shared) > 1 and not any(isinstance(action, Messages) for action in actions[first:second])


def kernel_hang(program: Program, chance: random.Random) -> Fault:
    """Let a kernel of a rank never end."""
    rank = chance.randrange(program.world_size)
    program.ranks[rank].insert(chance.choice(_body(program, rank)), Kernel(FOREVER))
    return Fault("kernel_hang", frozenset({rank}), closed=True)


def program_hang(program: Program, chance: random.Random) -> Fault:
    """Let the streams of all ranks block at one place, as a wrong order of streams does. No rank is to blame."""
    starts = [_steps(program, rank) for rank in range(program.world_size)]
    step = chance.randrange(min(len(found) for found in starts))
    for rank, found in enumerate(starts):
        program.ranks[rank].insert(found[step], Kernel(FOREVER))
    return Fault("program_hang", closed=True)


def _steps(program: Program, rank: int) -> list[int]:
    """Return the indices at which a rank's steps begin."""
    actions = program.ranks[rank]
    return [i for i, action in enumerate(actions) if isinstance(action, Python) and action.place == "data"]


def network(program: Program, chance: random.Random) -> Fault:
    """Break the network of a group."""
    groups = [index for index, group in enumerate(program.groups) if len(group.members) > 1]
    return Fault("network", broken_group=chance.choice(groups), closed=True)


def network_pair(program: Program, chance: random.Random) -> Fault | None:
    """Break the messages between two ranks."""
    found = _pick(program, chance, lambda action: isinstance(action, Messages))
    if found is None:
        return None
    rank, index = found
    call = program.ranks[rank][index]
    assert isinstance(call, Messages)
    return Fault("network_pair", broken_group=call.group, broken_pair=(rank, call.parts[0].peer), closed=True)


def dead(program: Program, chance: random.Random) -> Fault:
    """Kill a process. The supervisor knows."""
    ranks = frozenset({chance.randrange(program.world_size)})
    return Fault("dead", ranks, silent=ranks, dead=ranks, dies=ranks)


def dead_unknown(program: Program, chance: random.Random) -> Fault:
    """Kill a process, and nobody knows: its node is gone."""
    ranks = frozenset({chance.randrange(program.world_size)})
    return Fault("dead_unknown", ranks, silent=ranks, dies=ranks)


def exited(program: Program, chance: random.Random) -> Fault:
    """Let a rank exit by an exception. The supervisor knows."""
    ranks = frozenset({_stop(program, chance, "gone")})
    return Fault("exited", ranks, silent=ranks, dead=ranks)


def teardown(program: Program, chance: random.Random) -> Fault:
    """Let a rank hang in teardown after an exception."""
    ranks = frozenset({_stop(program, chance, "teardown")})
    return Fault("teardown", ranks, silent=ranks if chance.random() < 0.3 else frozenset())


def stopped(program: Program, chance: random.Random) -> Fault:
    """Stop a process, or let it hold its GIL: it gives no dump."""
    ranks = frozenset({_stop(program, chance, "stopped")})
    return Fault("stopped", ranks, silent=ranks)


def in_call(program: Program, chance: random.Random) -> Fault | None:
    """Let a host never come back from an NCCL call."""
    found = _pick(program, chance, lambda action: isinstance(action, Collective) and not action.coalesced)
    if found is None:
        return None
    rank, index = found
    call = program.ranks[rank][index]
    assert isinstance(call, Collective)
    program.ranks[rank][index] = replace(call, stuck_in_call=True)
    return Fault("in_call", frozenset({rank}))


def lazy_init(program: Program, chance: random.Random) -> Fault | None:
    """Keep a rank away from the first call of a group, in which its communicator is made."""
    rank = chance.randrange(program.world_size)
    firsts: dict[int, int] = {}
    for index, action in enumerate(program.ranks[rank]):
        if isinstance(action, Collective | Messages):
            firsts.setdefault(action.group, index)
    program.ranks[rank].insert(chance.choice(list(firsts.values())), Python(FOREVER))
    return Fault("lazy_init", frozenset({rank}), needs={"eager_init": False})


def new_group(program: Program, chance: random.Random) -> Fault | None:
    """Keep a rank away from the making of groups."""
    rank = chance.randrange(program.world_size)
    makings = [i for i, action in enumerate(program.ranks[rank]) if isinstance(action, NewGroups)]
    if not makings:
        return None
    program.ranks[rank].insert(chance.choice(makings), Python(FOREVER))
    return Fault("new_group", frozenset({rank}))


def _drop_part(program: Program, chance: random.Random, kind: str, is_send: bool) -> Fault | None:
    found = _pick(
        program,
        chance,
        lambda action: isinstance(action, Messages) and any(part.is_send == is_send for part in action.parts),
    )
    if found is None:
        return None
    rank, index = found
    call = program.ranks[rank][index]
    assert isinstance(call, Messages)
    kept = tuple(part for part in call.parts if part.is_send != is_send)
    if kept:
        program.ranks[rank][index] = replace(call, parts=kept)
    else:
        del program.ranks[rank][index]
    return Fault(kind, frozenset({rank}), needs={"eager_numel": 0})


def no_receive(program: Program, chance: random.Random) -> Fault | None:
    """Let a rank leave out a receive."""
    return _drop_part(program, chance, "no_receive", False)


def no_send(program: Program, chance: random.Random) -> Fault | None:
    """Let a rank leave out a send."""
    return _drop_part(program, chance, "no_send", True)


def message_cycle(program: Program, chance: random.Random) -> Fault:
    """Let two ranks send to each other before they receive."""
    index = chance.choice([i for i, group in enumerate(program.groups) if len(group.members) > 1])
    pair = chance.sample(program.groups[index].members, 2)
    steps = [_steps(program, rank) for rank in pair]
    step = chance.randrange(min(map(len, steps)))
    for rank, peer, found in zip(pair, pair[::-1], steps, strict=True):
        send = Messages(index, (Message(True, peer, LARGE),), False, -1)
        receive = Messages(index, (Message(False, peer, LARGE),), False, -2)
        program.ranks[rank][found[step] : found[step]] = [send, Wait((-1,)), receive, Wait((-2,))]
    return Fault("message_cycle", frozenset(pair))


def graph_replay(program: Program, chance: random.Random) -> Fault | None:
    """Keep a rank away from the replay of a CUDA graph."""
    rank = chance.randrange(program.world_size)
    replays = [i for i, action in enumerate(program.ranks[rank]) if isinstance(action, Replay)]
    if not replays:
        return None
    program.ranks[rank].insert(chance.choice(replays), Python(FOREVER))
    return Fault("graph_replay", frozenset({rank}))


def healthy(_program: Program, _chance: random.Random) -> Fault:
    """Change nothing."""
    return Fault("healthy", closed=True)


FAULTS: dict[str, tuple[Injector, tuple[str, ...]]] = {
    "healthy": (healthy, ()),
    "busy": (busy, ()),
    "two_busy": (two_busy, ()),
    "data_loader": (data_loader, ()),
    "skipped": (skipped, ()),
    "other_op": (other_op, ()),
    "other_size": (other_size, ()),
    "opposite_order": (opposite_order, ("tp", "3d", "hsdp", "pp", "cp", "ep")),
    "kernel_hang": (kernel_hang, ()),
    "program_hang": (program_hang, ()),
    "network": (network, ()),
    "network_pair": (network_pair, ("pp", "pp_unbatched", "3d", "cp")),
    "dead": (dead, ()),
    "dead_unknown": (dead_unknown, ()),
    "exited": (exited, ()),
    "teardown": (teardown, ()),
    "stopped": (stopped, ()),
    "in_call": (in_call, ()),
    "lazy_init": (lazy_init, ()),
    "new_group": (new_group, ("tp", "pp", "3d", "hsdp", "cp", "ep")),
    "no_receive": (no_receive, ("pp", "pp_unbatched", "3d", "cp")),
    "no_send": (no_send, ("pp", "pp_unbatched", "3d", "cp")),
    "message_cycle": (message_cycle, ()),
    "graph_replay": (graph_replay, ("graph",)),
}
"""Injectors by kind, with the layouts in which the fault can be. Empty: in all."""
