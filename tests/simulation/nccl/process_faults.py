"""Faults of a process, its device or the network: ranks that stop, die, hang in a kernel or cannot be reached."""

import random
from dataclasses import replace

from tests.simulation.nccl.actions import FOREVER, Collective, Kernel, Messages, NewGroups, Program, Python, Replay
from tests.simulation.nccl.fault import Fault, body, is_plain, needs_all, pick, steps


def _stop(program: Program, chance: random.Random, place: str) -> int:
    """Stop a rank's host somewhere. Return the rank."""
    rank = chance.randrange(program.world_size)
    program.ranks[rank].insert(chance.choice(body(program, rank)), Python(FOREVER, place))
    return rank


def healthy(_program: Program, _chance: random.Random) -> Fault:
    """Change nothing."""
    return Fault("healthy", closed=True)


def busy(program: Program, chance: random.Random) -> Fault:
    """Keep a rank in Python."""
    return Fault("busy", frozenset({_stop(program, chance, "user")}))


def data_loader(program: Program, chance: random.Random) -> Fault | None:
    """Let the data loader of a rank deliver nothing."""
    found = pick(program, chance, Python, lambda action: action.place == "data")
    if found is None:
        return None
    rank, index, _ = found
    program.ranks[rank][index] = Python(FOREVER, "data")
    return Fault("data_loader", frozenset({rank}))


def teardown(program: Program, chance: random.Random) -> Fault:
    """Let a rank hang in teardown after an exception."""
    ranks = frozenset({_stop(program, chance, "teardown")})
    return Fault("teardown", ranks, silent=ranks if chance.random() < 0.3 else frozenset())


def stopped(program: Program, chance: random.Random) -> Fault:
    """Stop a process, or let it hold its GIL: it gives no dump."""
    ranks = frozenset({_stop(program, chance, "stopped")})
    return Fault("stopped", ranks, silent=ranks)


def dead(program: Program, chance: random.Random) -> Fault:
    """Kill a process. The supervisor knows."""
    ranks = frozenset({chance.randrange(program.world_size)})
    return Fault("dead", ranks, silent=ranks, dead=ranks, dies=ranks)


def dead_node(program: Program, chance: random.Random) -> Fault:
    """Kill the ranks of a node. The supervisor knows."""
    size = program.world_size
    count = min(8, size // 2)
    first = chance.randrange(size // count) * count
    ranks = frozenset(range(first, first + count))
    return Fault("dead_node", ranks, silent=ranks, dead=ranks, dies=ranks)


def dead_unknown(program: Program, chance: random.Random) -> Fault:
    """Kill a process, and nobody knows: its node is gone."""
    ranks = frozenset({chance.randrange(program.world_size)})
    return Fault("dead_unknown", ranks, silent=ranks, dies=ranks)


def exited(program: Program, chance: random.Random) -> Fault:
    """Let a rank exit by an exception. The supervisor knows."""
    ranks = frozenset({_stop(program, chance, "gone")})
    return Fault("exited", ranks, silent=ranks, dead=ranks)


def lazy_init(program: Program, chance: random.Random) -> Fault | None:
    """Keep a rank away from the first call of a group, in which its communicator is made."""
    rank = chance.randrange(program.world_size)
    firsts: dict[int, int] = {}
    for index, action in enumerate(program.ranks[rank]):
        if isinstance(action, Collective | Messages):
            firsts.setdefault(action.group, index)
    program.ranks[rank].insert(chance.choice(list(firsts.values())), Python(FOREVER))
    return Fault("lazy_init", frozenset({rank}), needs={"eager_init": False})


def _keep_away(program: Program, chance: random.Random, name: str, kind: type[NewGroups | Replay]) -> Fault | None:
    """Keep a rank away from an action of a kind, if it has one."""
    rank = chance.randrange(program.world_size)
    found = [i for i, action in enumerate(program.ranks[rank]) if isinstance(action, kind)]
    if not found:
        return None
    program.ranks[rank].insert(chance.choice(found), Python(FOREVER))
    return Fault(name, frozenset({rank}))


def new_group(program: Program, chance: random.Random) -> Fault | None:
    """Keep a rank away from the making of groups."""
    return _keep_away(program, chance, "new_group", NewGroups)


def graph_replay(program: Program, chance: random.Random) -> Fault | None:
    """Keep a rank away from the replay of a CUDA graph."""
    return _keep_away(program, chance, "graph_replay", Replay)


def in_call(program: Program, chance: random.Random) -> Fault | None:
    """Let a host never come back from an NCCL call."""
    found = pick(program, chance, Collective, is_plain)
    if found is None:
        return None
    rank, index, call = found
    program.ranks[rank][index] = replace(call, stuck_in_call=True)
    return Fault("in_call", frozenset({rank}))


def unfinished_call(program: Program, chance: random.Random) -> Fault | None:
    """Let a collective that needs all members end on all of them but one."""
    found = pick(program, chance, Collective, needs_all)
    if found is None:
        return None
    rank, index, call = found
    program.ranks[rank][index] = replace(call, never_ends=True)
    return Fault("unfinished_call", frozenset({rank}), stuck=frozenset({rank}))


def several(program: Program, chance: random.Random) -> Fault | None:
    """Put two or three faults into one program, on different ranks. One may hide the other."""
    mixes = ((busy, busy), (busy, stopped), (busy, data_loader, busy), (busy, unfinished_call))
    faults = [inject(program, chance) for inject in chance.choice(mixes)]
    found = [fault for fault in faults if fault is not None]
    culprits = frozenset[int]().union(*(fault.culprits for fault in found))
    if len(culprits) < len(faults):
        return None
    silent = frozenset[int]().union(*(fault.silent for fault in found))
    return Fault("several", culprits, silent, stuck=frozenset[int]().union(*(fault.stuck for fault in found)))


def kernel_hang(program: Program, chance: random.Random) -> Fault:
    """Let a kernel of a rank never end."""
    rank = chance.randrange(program.world_size)
    program.ranks[rank].insert(chance.choice(body(program, rank)), Kernel(FOREVER))
    return Fault("kernel_hang", frozenset({rank}), closed=True)


def program_hang(program: Program, chance: random.Random) -> Fault:
    """Let the streams of all ranks block at one place, as a wrong order of streams does. No rank is to blame."""
    starts = [steps(program, rank) for rank in range(program.world_size)]
    step = chance.randrange(min(len(found) for found in starts))
    for rank, found in enumerate(starts):
        program.ranks[rank].insert(found[step], Kernel(FOREVER))
    return Fault("program_hang", closed=True)


def network(program: Program, chance: random.Random) -> Fault:
    """Break the network of a group."""
    groups = [index for index, group in enumerate(program.groups) if len(group.members) > 1]
    return Fault("network", broken_group=chance.choice(groups), closed=True)


def network_pair(program: Program, chance: random.Random) -> Fault | None:
    """Break the messages between two ranks."""
    found = pick(program, chance, Messages)
    if found is None:
        return None
    rank, _, call = found
    return Fault("network_pair", broken_group=call.group, broken_pair=(rank, call.parts[0].peer), closed=True)
