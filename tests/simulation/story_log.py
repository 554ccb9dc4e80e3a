"""The lines of a scenario's log for one tick: suspicions, verdicts, incidents, commands, phases."""

from collections.abc import Iterable, Iterator

from holdfast_core.model import Action, CheckpointAnswered, CoreState, DetectorFailed, SaveIncident, Send
from holdfast_core.naming import kind_name
from holdfast_proto.v1 import store_pb2 as store

_SOURCES = {
    store.SOURCE_SEED: "the seed",
    store.SOURCE_MEMORY: "memory",
    store.SOURCE_REPLICA: "replica snapshots",
    store.SOURCE_CHECKPOINT: "a checkpoint",
}


def lines(before: CoreState, after: CoreState, actions: Iterable[Action]) -> Iterator[str]:
    """Yield one line for each thing that happened in a tick."""
    taken = list(actions)
    for what in ("raised", "resolved", "confirmed"):
        new = after.totals.suspicions.get(what, 0) - before.totals.suspicions.get(what, 0)
        yield from [f"suspicion {what}"] * max(0, new)
    yield from _incidents(before, (action.incident for action in taken if isinstance(action, SaveIncident)))
    yield from _commands([action for action in taken if isinstance(action, Send)])
    for action in taken:
        if isinstance(action, CheckpointAnswered | DetectorFailed):
            yield str(action)
    if after.record.phase != before.record.phase:
        yield f"phase {_phase(before)} -> {_phase(after)}"
    if after.record.phase == store.RUN_PHASE_FAILED != before.record.phase:
        yield f"outcome: {after.record.outcome}"


def _incidents(before: CoreState, saved: Iterable[store.Incident]) -> Iterator[str]:
    known = {name: incident.state for name, incident in before.incidents.items()}
    for incident in saved:
        verdict = incident.verdict
        if incident.id not in known:
            culprits = f" {list(verdict.culprits)}" if verdict.culprits else ""
            yield f"verdict {kind_name(verdict.kind)}{culprits}: {verdict.message}"
            yield from (f"    {call}" for call in verdict.calls)
        if known.get(incident.id) != incident.state:
            state = store.IncidentState.Name(incident.state).removeprefix("INCIDENT_STATE_").lower()
            known[incident.id] = incident.state
            lost = f", {incident.lost_steps} steps lost" if state == "recovered" else ""
            yield f"incident {incident.id} {state}{lost}"


def _commands(sent: list[Send]) -> Iterator[str]:
    nodes: dict[str, list[str]] = {}
    for send in sent:
        nodes.setdefault(_command_text(send.command), []).append(send.node)
    for text, names in nodes.items():
        yield f"command to {', '.join(names)}: {text}"


def _command_text(command: store.NodeCommand) -> str:
    kind = command.WhichOneof("kind")
    match kind:
        case "start":
            after = f" after step {command.start.step}" if command.start.step >= 0 else ""
            return f"start generation {command.generation} from {_SOURCES[command.start.source]}{after}"
        case "stop":
            return f"stop generation {command.generation}"
        case "gather_evidence":
            gather = command.gather_evidence
            stacks = f", stacks of ranks {list(gather.stack_ranks)}" if gather.stack_ranks else ""
            recorders = ", flight recorders" if gather.flight_recorder else ""
            return f"gather evidence for {gather.incident or 'the suspicion'}{stacks}{recorders}"
        case "replicate":
            return f"replicate step {command.replicate.step}"
        case "persist_snapshot" | "keep_checkpoint" | "take_checkpoint":
            return f"{kind.replace('_', ' ')} of step {getattr(command, kind).step}"
        case _:
            return str(kind)


def _phase(state: CoreState) -> str:
    return store.RunPhase.Name(state.record.phase).removeprefix("RUN_PHASE_").lower()
