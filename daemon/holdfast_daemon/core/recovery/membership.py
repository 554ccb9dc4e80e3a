"""The nodes of a run: a spare takes the place of a lost node, and a node that was replaced stops its ranks."""

from dataclasses import replace

from holdfast_daemon.core import incidents
from holdfast_daemon.core.recovery.ending import RESEND_S
from holdfast_daemon.core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store


def replace_lost(tick: Tick) -> None:
    """Let spares take the places of missing nodes."""
    nodes, members = tick.state.nodes, list(tick.record.nodes)
    mine = (name for name, node in nodes.items() if node.ready and node.instance == tick.state.spec.instance)
    spares = sorted(name for name in mine if name not in members)
    for lost, spare in zip([name for name in members if name not in nodes], spares, strict=False):
        members[members.index(lost)] = spare
        incidents.add_line_to_open(tick, f"node {spare} takes the place of {lost}")
    if members != list(tick.record.nodes):
        with tick.edit_record() as record:
            record.nodes[:] = members


def stop_strays(tick: Tick) -> None:
    """Have nodes that were replaced while they were unreachable stop the ranks that they still have."""
    if tick.observes or tick.now - tick.state.strays_stopped_unix_s < RESEND_S:
        return
    members = set(tick.record.nodes)
    for name, node in tick.state.nodes.items():
        ours = name not in members and node.instance == tick.state.spec.instance
        if ours and node.generation and not node.stopped:
            tick.state = replace(tick.state, strays_stopped_unix_s=tick.now)
            message = store.StopGeneration(reason="another node has taken this one's place")
            tick.send_to(name, store.NodeCommand(generation=node.generation, stop=message))
