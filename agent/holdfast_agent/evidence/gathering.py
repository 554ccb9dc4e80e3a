"""Gathers what an incident is judged from, before the ranks are gone."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from holdfast_agent.evidence import flight_dumps, stacks, suspicions
from holdfast_agent.evidence.folder import EvidenceFolder
from holdfast_agent.evidence.node_state import write_device_state, write_node_state
from holdfast_agent.evidence.process_state import write_process_state
from holdfast_agent.node import Node
from holdfast_agent.processes.rank import Rank
from holdfast_proto import black_box
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PendingCall

Part = TypeVar("Part")

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
    dumps = flight_dumps.collect(node, ranks, folder) if order.flight_recorder else _nothing()
    summaries, calls, _ = await asyncio.gather(
        _attempt(node, folder, "stacks", _look_at_processes(node, folder, ranks, named, is_sure=bool(order.incident))),
        _attempt(node, folder, "Flight Recorder dumps", dumps),
        _attempt(node, folder, "state of the devices", write_device_state(folder)),
    )
    captured.stacks.extend(summary for summary in summaries or () if summary is not None)
    captured.pending.extend(calls or ())
    folder.write(f"node-{folder.node}.findings.json", _json(captured))
    captured.files.extend(folder.files())
    return captured


async def _nothing() -> list[PendingCall]:
    return []


async def _attempt(node: Node, folder: EvidenceFolder, what: str, job: Awaitable[Part]) -> Part | None:
    """Return a part of the evidence; None, and a line in the folder, if it fails in a way that nobody expected."""
    try:
        return await job
    except OSError as error:
        folder.miss(what, str(error))
    except Exception as error:  # noqa: BLE001  the other parts are needed all the more
        node.errors.note("evidence", error)
        folder.miss(what, repr(error))
    return None


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
    jobs = (
        _attempt(node, folder, f"stacks of rank {rank.rank}", stacks.take(rank, folder, may_pause=is_sure))
        for rank in named
    )
    return await asyncio.gather(*jobs)


async def _write_files(node: Node, folder: EvidenceFolder, ranks: list[Rank], named: list[Rank]) -> None:
    def write() -> None:
        for rank in ranks:
            with _contained(folder, f"rank {rank.rank}"):
                _write_black_box(node, rank, folder)
                if rank.exit is None:
                    write_process_state(rank, folder, threads=rank in named)
                else:
                    folder.write(f"rank-{rank.rank:05}.exit.json", _json(rank.exit))
        with _contained(folder, "state of the node"):
            write_node_state(folder, [node.options.directory, node.options.shm_directory, node.writer.path])

    try:
        await asyncio.wait_for(asyncio.to_thread(write), FILES_PATIENCE_S)
    except TimeoutError:
        folder.miss("the rest of what is read from /proc and disks", f"not read within {FILES_PATIENCE_S:g} s")


@contextlib.contextmanager
def _contained(folder: EvidenceFolder, what: str) -> Iterator[None]:
    """Note what fails in the folder. For the thread that writes files, where the agent's counters are out of reach."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  one rank's files must not cost those of the others
        folder.miss(what, repr(error))


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
