"""Gathers the evidence of an incident before its ranks are gone."""

import asyncio
import contextlib
import dataclasses
import json
import shutil
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar, cast

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from holdfast_agent.blocking.stall_watch import pids_of
from holdfast_agent.evidence import flight_dumps, stacks
from holdfast_agent.evidence.brief_command import stretched
from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.evidence.node_state import write_device_state, write_node_state, write_process_state
from holdfast_agent.node import Node
from holdfast_agent.processes.rank import Rank
from holdfast_proto import black_box
from holdfast_proto.limits import LARGEST_COUNT
from holdfast_proto.run_files import SUSPICION_WITHIN, black_box_copy, findings, rank_evidence
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import Phase
from holdfast_proto.vocabulary import PHASES

Part = TypeVar("Part")

FILES_PATIENCE_S = 2.0
"""Seconds for reading /proc and disks, which may hang."""

SUSPICIONS_KEPT = 2
"""Folders of suspicions that are kept: one that was not confirmed is soon of no use."""


class EvidenceGatherer:
    """Gathers the evidence of one node's ranks."""

    def __init__(self, node: Node, checkpoints: Path) -> None:
        """``checkpoints``: local folder of the checkpoints, whose free space is evidence."""
        self._node = node
        self._checkpoints = checkpoints

    async def gather(self, command: store.GatherEvidence) -> store.EvidenceCaptured:
        """Fill the folder of the incident, or of the suspicion if there is no incident; return what is found.

        Of ranks whose files are not asked for, only the recorders of calls on devices are read. Raises OSError if the
        folder cannot be created.
        """
        suspicion = "" if command.incident else command.suspicion
        captured = store.EvidenceCaptured(incident=command.incident, suspicion=suspicion)
        ranks = list(self._node.ranks.values())
        asked = frozenset(command.file_ranks)
        chosen = [rank for rank in ranks if not asked or rank.rank in asked]
        recorders_alone = [rank for rank in ranks if rank not in chosen] if command.flight_recorder else []
        jobs = [self._read_recorders(captured, recorders_alone)] if recorders_alone else []
        if chosen or not asked:
            jobs.append(self._fill(self._folder(command), command, chosen, captured))
        await asyncio.gather(*jobs)
        return captured

    async def _fill(
        self,
        folder: EvidenceFolder,
        command: store.GatherEvidence,
        ranks: list[Rank],
        captured: store.EvidenceCaptured,
    ) -> None:
        """Write the files of ``ranks`` and of the node, and add what they show to ``captured``."""
        named = [rank for rank in ranks if rank.rank in command.stack_ranks and rank.is_alive]
        is_sure = bool(command.incident)
        dumps = flight_dumps.collect(ranks, folder, self._node.errors) if command.flight_recorder else _nothing()
        summaries, calls, places, _ = await asyncio.gather(
            self._attempt(folder, "stacks", self._look_at_processes(folder, ranks, named, is_sure=is_sure)),
            self._attempt(folder, "Flight Recorder dumps", dumps),
            self._attempt(folder, "places of stopped ranks", self._places(ranks)),
            self._attempt(folder, "state of the devices", write_device_state(folder)),
        )
        summary = store.EvidenceCaptured(incident=captured.incident, suspicion=captured.suspicion)
        summary.stacks.extend(one for one in summaries or () if one is not None)
        if calls is not None:
            summary.pending.extend(calls.pending)
            captured.recorders.extend(calls.recorders)  # in the folder, they are files of their own
        summary.places.extend(places or ())
        folder.write(findings(folder.node), _json(summary))
        captured.MergeFrom(summary)
        captured.files.extend(folder.files(rank.rank for rank in ranks))

    async def _read_recorders(self, captured: store.EvidenceCaptured, ranks: list[Rank]) -> None:
        """Add the recorders of ``ranks`` to ``captured``, and keep no file: the dumps are on this node for a moment."""
        scratch = self._node.options.recorder_scratch
        shutil.rmtree(scratch, ignore_errors=True)  # a rank may have answered too late the last time
        try:
            folder = EvidenceFolder(scratch, self._node.options.node)
            found = await flight_dumps.collect(ranks, folder, self._node.errors, on_devices_only=True)
            captured.recorders.extend(found.recorders)
        except Exception as error:  # noqa: BLE001  the evidence of the other ranks is then needed all the more
            self._node.errors.note("evidence", error)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    async def _places(self, ranks: list[Rank]) -> list[store.RankPlace]:
        """Return where the black boxes show stopped ranks: their last reports may be older than the signal."""
        boxes = {
            rank.rank: (rank.pid, self._node.options.black_box(rank.generation, rank.rank))
            for rank in ranks
            if rank.is_alive and rank.process_state in stacks.STOPPED
        }
        limit_s = stretched(FILES_PATIENCE_S)
        try:
            return await asyncio.wait_for(asyncio.to_thread(_read_places, boxes), limit_s)
        except TimeoutError:
            raise TimeoutError(f"the black boxes were not read within {limit_s:g} s") from None

    async def _attempt(self, folder: EvidenceFolder, what: str, job: Awaitable[Part]) -> Part | None:
        """Return a part of the evidence; None, and a line in the folder, if it fails."""
        try:
            return await job
        except OSError as error:
            folder.miss(what, error)
        except Exception as error:  # noqa: BLE001  the other parts are then needed all the more
            self._node.errors.note("evidence", error)
            folder.miss(what, repr(error))
        return None

    def _folder(self, command: store.GatherEvidence) -> EvidenceFolder:
        options = self._node.options
        suspicion = options.suspicion_directory(command.suspicion)
        if not command.incident:
            _make_room(suspicion.parent)
            return EvidenceFolder(suspicion, options.node)
        folder = EvidenceFolder(options.incident_directory(command.incident), options.node)
        if command.suspicion:
            # Nothing was gathered then, or another node that shares this folder has moved it.
            with contextlib.suppress(FileNotFoundError):
                suspicion.rename(folder.path / SUSPICION_WITHIN)
        return folder

    async def _look_at_processes(
        self, folder: EvidenceFolder, ranks: list[Rank], named: list[Rank], *, is_sure: bool
    ) -> "list[store.StackSummary | None]":
        # First /proc, then py-spy: while py-spy pauses a process, /proc shows the pause and not what it did before.
        await self._write_files(folder, ranks, named)
        # A suspect may be healthy, so nothing pauses it before the verdict.
        pids = pids_of(self._node)
        jobs = (
            self._attempt(
                folder, f"stacks of rank {rank.rank}", stacks.take(rank, folder, may_pause=is_sure, pids=pids)
            )
            for rank in named
        )
        return await asyncio.gather(*jobs)

    async def _write_files(self, folder: EvidenceFolder, ranks: list[Rank], named: list[Rank]) -> None:
        options = self._node.options

        def write() -> None:
            for rank in ranks:
                with _contained(folder, f"rank {rank.rank}"):
                    _write_black_box(options.black_box(rank.generation, rank.rank), rank, folder)
                    if rank.exit is None:
                        write_process_state(rank, folder, threads=rank in named)
                    else:
                        folder.write(rank_evidence(rank.rank, "exit.json"), _json(rank.exit))
            with _contained(folder, "state of the node"):
                write_node_state(folder, [options.directory, options.shm_directory, self._checkpoints])

        limit_s = stretched(FILES_PATIENCE_S)
        try:
            await asyncio.wait_for(asyncio.to_thread(write), limit_s)
        except TimeoutError:
            folder.miss("the rest of what is read from /proc and disks", f"not read within {limit_s:g} s")


def _read_places(boxes: Mapping[int, tuple[int, Path]]) -> list[store.RankPlace]:
    """Return the places of ranks whose boxes make sense. ``boxes``: rank -> pid and black box."""
    places = []
    for rank, (pid, box) in boxes.items():
        with contextlib.suppress(OSError, ValueError):
            moment = black_box.read_moment(box)
            if moment.pid == pid and moment.phase in PHASES and -1 <= moment.step <= LARGEST_COUNT:
                places.append(store.RankPlace(rank=rank, step=moment.step, phase=cast("Phase", moment.phase)))
    return places


async def _nothing() -> flight_dumps.FoundCalls:
    return flight_dumps.FoundCalls()


def _make_room(directory: Path) -> None:
    """Remove all suspicions but the newest, so that there is room for one more."""
    folders = sorted((path for path in directory.glob("*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for folder in folders[: -(SUSPICIONS_KEPT - 1)]:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _contained(folder: EvidenceFolder, what: str) -> Iterator[None]:
    """Note a failure in the folder. For the thread that writes files, which must not touch the agent's counters."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  a failure of one rank's files must not cost those of the others
        folder.miss(what, repr(error))


def _write_black_box(box: Path, rank: Rank, folder: EvidenceFolder) -> None:
    name = black_box_copy(rank.rank)
    try:
        contents = black_box.read(box)
    except (OSError, ValueError) as error:
        folder.miss(name, error)
    else:
        folder.write(name, json.dumps(dataclasses.asdict(contents), indent=1))


def _json(message: Message) -> str:
    return json.dumps(MessageToDict(message, preserving_proto_field_name=True), indent=1)
