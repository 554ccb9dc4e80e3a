"""Requests for the stacks or a profile of live ranks: sent to their nodes, repeated, answered, and given up in time."""

from collections.abc import Mapping
from dataclasses import replace

from holdfast_core.model import LiveAnswered, LiveRequest, ProfileRequest, StacksRequest
from holdfast_core.naming import listed, phase_name, ranks_named, run_phase_name
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

STACKS_PATIENCE_S = 30.0
"""Time for all nodes to send their stacks. A node with eight ranks and native frames needs about 10 s at most."""

REPEAT_S = 2.0
"""Pause before a command is repeated. The store may have lost it, and agents serve each request once."""

MOST_STACKS = 1024
"""Most ranks of one request: the answer passes through the store and the daemon in one piece."""

MOST_REQUESTS = 64
"""Most requests that wait for an answer: each keeps what the nodes have sent until then."""

_LATE_S = 10.0
"""Time in which a rank whose steps end reports that it has given up, or has written the files."""

_ON_ITS_WAY_S = 1.0


def serve_stacks(tick: Tick, request: StacksRequest) -> None:
    """Send a request for stacks to the nodes of its ranks, or refuse it."""
    places = _places(tick)
    wanted = request.ranks or tuple(sorted(places))
    refusal = _refusal(tick, wanted, places)
    if not refusal and len(wanted) > MOST_STACKS:
        refusal = f"{len(wanted)} ranks are more than {MOST_STACKS} for one request: name some with --rank"
    if refusal:
        tick.actions.append(LiveAnswered(request.id, refusal))
        return
    by_node: dict[str, list[int]] = {}
    for rank in wanted:
        by_node.setdefault(places[rank], []).append(rank)
    commands = {
        node: store.NodeCommand(
            generation=tick.record.generation,
            take_stacks=store.TakeStacks(request=request.id, ranks=ranks, native=request.native),
        )
        for node, ranks in by_node.items()
    }
    _begin(tick, request.id, commands, tick.now + STACKS_PATIENCE_S)


def serve_profile(tick: Tick, request: ProfileRequest) -> None:
    """Send a request for a profile to the node of its rank, or refuse it."""
    places = _places(tick)
    refusal = _refusal(tick, (request.rank,), places) or _unready(tick, request.rank)
    if refusal:
        tick.actions.append(LiveAnswered(request.id, refusal))
        return
    profile = store.TakeProfile(
        request=request.id, rank=request.rank, steps=request.steps, patience_s=request.patience_s
    )
    command = store.NodeCommand(generation=tick.record.generation, take_profile=profile)
    step = tick.ranks[request.rank].progress.step
    _begin(tick, request.id, {places[request.rank]: command}, tick.now + request.patience_s, step)


def absorb(tick: Tick, event: store.Event) -> None:
    """Take in what a node has sent; answer the operator once no node is missing."""
    taken = event.stacks_taken if event.HasField("stacks_taken") else event.profile_taken
    request = tick.state.live_requests.get(taken.request)
    if request is None or event.node not in request.waiting:
        return  # an answer to a repeated command, or one that nobody waits for any more
    waiting = {node: command for node, command in request.waiting.items() if node != event.node}
    _keep(tick, replace(request, waiting=waiting, answers=(*request.answers, event)))
    if not waiting:
        _answer(tick, request.id)


def follow(tick: Tick) -> None:
    """Repeat what is not answered, and give up what cannot be answered any more."""
    for request in tick.state.live_requests.values():
        reason = _loss(tick, request) or _lateness(tick, request)
        if reason:
            _give_up(tick, request, reason)
        elif tick.now - request.sent_unix_s >= REPEAT_S:
            _send(tick, request.waiting)
            _keep(tick, replace(request, sent_unix_s=tick.now))


def _places(tick: Tick) -> dict[int, str]:
    """Return the node of each rank that is alive."""
    return {
        rank.rank: name
        for name, node in tick.state.members.items()
        if node.generation == tick.record.generation
        for rank in node.ranks
        if not rank.HasField("exit")
    }


def _refusal(tick: Tick, wanted: tuple[int, ...], places: Mapping[int, str]) -> str:
    phase = run_phase_name(tick.record.phase)
    if len(tick.state.live_requests) >= MOST_REQUESTS:
        return f"{MOST_REQUESTS} requests wait for their answers: try again when some are answered"
    if tick.record.phase in ENDED:
        return f"the run has {phase}: no rank is alive"
    if not places:
        return f"no rank is alive now, the run is {phase}: try again when one is"
    unknown = [rank for rank in wanted if rank not in places]
    if unknown:
        return f"{ranks_named(unknown)}: no such rank is alive: name one of {listed(sorted(places))}"
    return ""


def _unready(tick: Tick, number: int) -> str:
    rank = tick.ranks[number]
    if rank.life == store.LIFE_STARTING:
        return f"rank {number} has not called attach() yet: try again when it trains"
    if rank.left_training:
        return f"rank {number} has left training: no step of it will end"
    return ""


def _begin(
    tick: Tick, name: str, commands: Mapping[str, store.NodeCommand], until_unix_s: float, step: int = -1
) -> None:
    request = LiveRequest(
        id=name,
        waiting=commands,
        began_unix_s=tick.now,
        sent_unix_s=tick.now,
        until_unix_s=until_unix_s,
        began_step=step,
    )
    _keep(tick, request)
    _send(tick, commands)


def _keep(tick: Tick, request: LiveRequest) -> None:
    tick.state = replace(tick.state, live_requests={**tick.state.live_requests, request.id: request})


def _send(tick: Tick, commands: Mapping[str, store.NodeCommand]) -> None:
    for node, command in commands.items():
        # A copy: the outbox gives every command an id of its own, and agents carry out an id once.
        repeated = store.NodeCommand()
        repeated.CopyFrom(command)
        tick.send_to(node, repeated)


def _profiled(request: LiveRequest) -> int | None:
    """Return the rank to profile; None of a request for stacks."""
    for command in request.waiting.values():
        if command.HasField("take_profile"):
            return command.take_profile.rank
    return None


def _loss(tick: Tick, request: LiveRequest) -> str:
    """Return why no node will answer any more; "" while one may."""
    if tick.record.phase in ENDED:
        return f"the run has {run_phase_name(tick.record.phase)} before there was an answer"
    if any(command.generation != tick.record.generation for command in request.waiting.values()):
        return "the ranks were restarted before there was an answer: try again"
    number = _profiled(request)
    rank = tick.ranks.get(number) if number is not None else None
    if rank is None or not rank.HasField("exit"):
        return ""
    [node] = request.waiting
    # The end of a profile may be on its way: events are read before the states of the nodes.
    if tick.now - (rank.exit.exited_unix_s - tick.state.clock_leads_s.get(node, 0.0)) < _ON_ITS_WAY_S:
        return ""
    if rank.exit.finished:
        return f"rank {number} has left training before its profile was complete"
    return f"rank {number} has ended before its profile was complete: `holdfast incidents` shows why"


def _lateness(tick: Tick, request: LiveRequest) -> str:
    """Return why a request is given up, if its time is over; else ""."""
    if tick.now < request.until_unix_s:
        return ""
    waited_s = tick.now - request.began_unix_s
    number = _profiled(request)
    if number is None:
        return f"no answer within {waited_s:.0f} s from {listed(sorted(request.waiting))}: see the logs of the agents"
    rank = tick.ranks.get(number)
    if rank is None:
        return f"the node of rank {number} reports no more: see `holdfast status`"
    place = f"in step {rank.progress.step} (phase {phase_name(rank.progress.phase)})"
    if rank.progress.step > request.began_step:
        if tick.now < request.until_unix_s + _LATE_S:
            return ""
        return (
            f"rank {number} has not reported its profile within {waited_s:.0f} s and is now {place}: "
            "raise --timeout or lower --steps. If its steps have ended, the files come to "
            f"profiles/{request.id} in the folder of the run"
        )
    still = f", without progress for {rank.stalled_s:.0f} s" if rank.stalled_s >= 1.0 else ""
    return (
        f"no step of rank {number} has ended within {waited_s:.0f} s: it is {place}{still}: "
        f"see where with `holdfast stacks --rank {number}`"
    )


def _give_up(tick: Tick, request: LiveRequest, reason: str) -> None:
    """Answer with what has come, and say of the missing ranks why they are missing."""
    if _profiled(request) is not None:
        _drop(tick, request.id)
        tick.actions.append(LiveAnswered(request.id, reason))
        return
    missing = [
        store.Event(
            node=node,
            generation=command.generation,
            unix_s=tick.now,
            stacks_taken=store.StacksTaken(
                request=request.id,
                ranks=[store.RankStacks(rank=rank, problem=reason) for rank in command.take_stacks.ranks],
            ),
        )
        for node, command in request.waiting.items()
    ]
    _keep(tick, replace(request, waiting={}, answers=(*request.answers, *missing)))
    _answer(tick, request.id)


def _answer(tick: Tick, name: str) -> None:
    request = _drop(tick, name)
    tick.actions.append(LiveAnswered(name, events=request.answers))


def _drop(tick: Tick, name: str) -> LiveRequest:
    requests = dict(tick.state.live_requests)
    request = requests.pop(name)
    tick.state = replace(tick.state, live_requests=requests)
    return request
