"""Gathers what an incident is judged from, before the ranks are gone."""

import asyncio
import dataclasses
import json

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from holdfast_agent import flight_dumps, stacks, suspicions
from holdfast_agent.evidence_folder import EvidenceFolder
from holdfast_agent.node import Node
from holdfast_agent.node_evidence import write_device_state, write_node_state
from holdfast_agent.process_evidence import write_process_state
from holdfast_agent.rank import Rank
from holdfast_proto import black_box
from holdfast_proto.v1 import store_pb2 as store

FILES_PATIENCE_S = 2.0
"""For what is read from /proc and from the disks, which may hang."""


async def gather(node: Node, order: store.GatherEvidence) -> store.EvidenceCaptured:
    """Fill the folder of the incident, or of the suspicion if there is no incident; return what is in it.

    Raises OSError if the folder cannot be made.
    """
    captured = store.EvidenceCaptured(incident=order.incident, suspicion="" if order.incident else order.suspicion)
    folder = _folder(node, order)
    ranks = list(node.ranks.values())
    named = [node.ranks[rank] for rank in order.stack_ranks if rank in node.ranks and node.ranks[rank].is_alive]
    dumps = [flight_dumps.collect(node, ranks, folder)] if order.flight_recorder else []
    summaries, calls, _ = await asyncio.gather(
        _look_at_processes(node, folder, ranks, named, is_sure=bool(order.incident)),
        asyncio.gather(*dumps),
        write_device_state(folder),
    )
    captured.stacks.extend(summary for summary in summaries if summary is not None)
    captured.pending.extend(call for found in calls for call in found)
    folder.write(f"node-{folder.node}.findings.json", _json(captured))
    captured.files.extend(folder.files())
    return captured


def _folder(node: Node, order: store.GatherEvidence) -> EvidenceFolder:
    suspicion = node.options.suspicion_directory(order.suspicion)
    if not order.incident:
        suspicions.make_room(suspicion.parent)
        return EvidenceFolder(suspicion, node.options.node)
    folder = EvidenceFolder(node.options.incident_directory(order.incident), node.options.node)
    if order.suspicion:
        suspicions.take_in(suspicion, folder.path)
    return folder


async def _look_at_processes(
    node: Node, folder: EvidenceFolder, ranks: list[Rank], named: list[Rank], *, is_sure: bool
) -> "list[store.StackSummary | None]":
    # One after the other: while py-spy pauses a process, /proc tells of that and not of what it did before.
    await _write_files(node, folder, ranks, named)
    # A suspect may be well: what pauses it waits for the verdict.
    return await asyncio.gather(*(stacks.take(rank, folder, may_pause=is_sure) for rank in named))


async def _write_files(node: Node, folder: EvidenceFolder, ranks: list[Rank], named: list[Rank]) -> None:
    def write() -> None:
        for rank in ranks:
            _write_black_box(node, rank, folder)
            if rank.exit is None:
                write_process_state(rank, folder, threads=rank in named)
            else:
                folder.write(f"rank-{rank.rank:05}.exit.json", _json(rank.exit))
        write_node_state(folder, [node.options.directory, node.options.shm_directory, node.writer.path])

    try:
        await asyncio.wait_for(asyncio.to_thread(write), FILES_PATIENCE_S)
    except TimeoutError:
        folder.miss("the rest of what is read from /proc and disks", f"not read within {FILES_PATIENCE_S:g} s")


def _write_black_box(node: Node, rank: Rank, folder: EvidenceFolder) -> None:
    name = f"rank-{rank.rank:05}.black_box.json"
    try:
        contents = black_box.read(node.options.black_box(rank.generation, rank.rank))
    except (OSError, ValueError) as error:
        folder.miss(name, str(error))
    else:
        folder.write(name, json.dumps(dataclasses.asdict(contents), indent=1))


def _json(message: Message) -> str:
    return json.dumps(MessageToDict(message, preserving_proto_field_name=True), indent=1)
