"""Mistakes of a program: calls that a rank leaves out, changes, or makes in another order than its peers."""

import random
from dataclasses import replace
from itertools import pairwise

from tests.simulation.nccl.actions import Action, Collective, Message, Messages, Program, Wait
from tests.simulation.nccl.fault import Fault, body, is_plain, pick, steps

LARGE = 1 << 30
"""Elements of a message that no buffer of NCCL takes."""


def skipped(program: Program, chance: random.Random) -> Fault | None:
    """Let a rank leave a collective out."""
    found = pick(program, chance, Collective)
    if found is None:
        return None
    rank, index, _ = found
    del program.ranks[rank][index]
    return Fault("skipped", frozenset({rank}))


def other_op(program: Program, chance: random.Random) -> Fault | None:
    """Let a rank call another collective than its peers."""
    found = pick(program, chance, Collective, is_plain)
    if found is None:
        return None
    rank, index, call = found
    op = "broadcast" if call.op != "broadcast" else "all_reduce"
    program.ranks[rank][index] = replace(call, op=op, fits=(op, *call.fits[1:]))
    return Fault("other_op", frozenset({rank}), both_sides=True)


def other_size(program: Program, chance: random.Random) -> Fault | None:
    """Let a rank call a collective with another size."""
    found = pick(program, chance, Collective, lambda call: is_plain(call) and len(call.fits) > 1)
    if found is None:
        return None
    rank, index, call = found
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
        calls = [index for index in body(program, rank) if isinstance(actions[index], Collective)]
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


def _drop_part(program: Program, chance: random.Random, kind: str, is_send: bool) -> Fault | None:
    found = pick(program, chance, Messages, lambda call: any(part.is_send == is_send for part in call.parts))
    if found is None:
        return None
    rank, index, call = found
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
    starts = [steps(program, rank) for rank in pair]
    step = chance.randrange(min(map(len, starts)))
    for rank, peer, found in zip(pair, pair[::-1], starts, strict=True):
        send = Messages(index, (Message(True, peer, LARGE),), False, -1)
        receive = Messages(index, (Message(False, peer, LARGE),), False, -2)
        program.ranks[rank][found[step] : found[step]] = [send, Wait((-1,)), receive, Wait((-2,))]
    return Fault("message_cycle", frozenset(pair))
