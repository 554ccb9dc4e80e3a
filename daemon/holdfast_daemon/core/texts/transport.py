"""Calls that all have entered and that do not complete, and nodes that do not reach each other."""

from collections.abc import Iterable

from holdfast_daemon.core.naming import listed
from holdfast_daemon.core.texts import places
from holdfast_daemon.core.waits.operations import has_root
from holdfast_proto.v1 import store_pb2 as store


def transport(verdict: store.Verdict) -> str:
    """Return which call or making of a group does not come about, and between which nodes."""
    detail = verdict.transport
    nodes = f"{'node' if len(detail.nodes) == 1 else 'nodes'} {listed(detail.nodes)}"
    match detail.form:
        case store.TRANSPORT_FORM_NO_CONNECTION:
            return f"{nodes} cannot connect to node {detail.meeting_node}, where all ranks are to meet: {detail.said}"
        case store.TRANSPORT_FORM_NO_MEETING:
            unseen = detail.unseen_ranks
            doubt = f" (if none of the {unseen} ranks whose stacks were not taken is elsewhere)" if unseen else ""
            return f"{nodes} do not reach each other: ranks of each wait in init for others, and do not meet{doubt}"
    group = places.group(detail.call)
    cause = "transport or device, not a rank"
    if detail.form == store.TRANSPORT_FORM_MESSAGE:
        cause = "transport or device, or the two name different tags"  # no recorder has the tags
        sent = f"rank {detail.sender} has sent message {detail.call.seq} of {group}"
        what = f"{sent}, and it does not come to rank {detail.receiver}"
    else:
        what = f"all ranks of {group} have entered call {detail.call.seq}, and it does not complete"
        if has_root(detail.call.op):
            cause = "transport or device, or they name different roots"  # no recorder has the roots
    return f"{what}{_between(detail.nodes)}: {cause}"


def _between(nodes: Iterable[str]) -> str:
    names = list(nodes)
    return f" between nodes {listed(names)}" if len(names) > 1 else ""
