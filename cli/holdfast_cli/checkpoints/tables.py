"""Checkpoints as tables and as JSON."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast_checkpoint.checkpoint_errors import CheckpointUnavailable, CheckpointUnreadable
from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.format.shard_index import ShardIndex
from holdfast_checkpoint.store.overview import FoundCheckpoint, layout_of, needed_by

_PROBLEM = "unusable"
_LEFT = "left"
_DAMAGED = "damaged"
_SHOWN_OF_MARK = ("verified_unix_s", "read_bytes", "damages")
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class TensorSummary:
    """One tensor of a checkpoint. Tensors of one name that each rank has for itself count as its shards."""

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    shards: int
    codecs: tuple[str, ...]
    raw_bytes: int
    stored_bytes: int


def summarize(indexes: Iterable[ShardIndex]) -> list[TensorSummary]:
    """Return the tensors of all ranks, in the order in which the ranks store them."""
    found: dict[str, TensorSummary] = {}
    for index in indexes:
        for stored in index.tensors:
            if not stored.is_stored:
                continue
            entry = stored.entry
            known = found.get(entry.name) or TensorSummary(entry.name, entry.dtype, entry.global_shape, 0, (), 0, 0)
            found[entry.name] = TensorSummary(
                name=entry.name,
                dtype=known.dtype,
                global_shape=known.global_shape,
                shards=known.shards + 1,
                codecs=tuple(dict.fromkeys((*known.codecs, stored.codec))),
                raw_bytes=known.raw_bytes + entry.nbytes,
                stored_bytes=known.stored_bytes + stored.stored_bytes,
            )
    return list(found.values())


def checkpoint_table(shown: Sequence[FoundCheckpoint], found: Sequence[FoundCheckpoint]) -> RenderableType:
    """Return one row for each of ``shown``, and below them what is wrong with which.

    ``found`` are all checkpoints of the directory.
    """
    if not shown:
        return Text("no checkpoints")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    has_histories = len({checkpoint.history for checkpoint in found}) > 1
    for column in (
        ("history", "step", "raw", "stored", "ratio") if has_histories else ("step", "raw", "stored", "ratio")
    ):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("committed", no_wrap=True)
    for column in ("layout", "base"):
        table.add_column(column)
    table.add_column("state", min_width=len(_PROBLEM))
    for checkpoint in shown:
        first = [str(checkpoint.history), str(checkpoint.step)] if has_histories else [str(checkpoint.step)]
        if checkpoint.manifest is None:
            table.add_row(*first, "", "", "", "", "", "", Text(_PROBLEM, style="yellow"))
        else:
            table.add_row(*first, *_row(checkpoint, checkpoint.manifest, needed_by(checkpoint, found)))
    # Whole paths have no room in a column.
    problems = [
        Text(f"step {checkpoint.step}: {checkpoint.problem}", style="yellow", overflow="fold")
        for checkpoint in shown
        if checkpoint.problem
    ]
    for checkpoint in shown:
        if (mark := checkpoint.verification) is not None:
            problems += [
                Text(f"step {checkpoint.step}: {_time(mark.verified_unix_s)}: {line}", style="yellow", overflow="fold")
                for line in mark.damages
            ]
    if any(map(_is_as_written, shown)):
        problems.append(Text("steps without 'verified' or 'damaged' were read back when they were written"))
    if any(checkpoint.is_left for checkpoint in shown):
        problems.append(Text(f"{_LEFT}: a later start continued from an older checkpoint, so no start uses this one"))
    return Group(table, *problems)


def checkpoint_as_json(checkpoint: FoundCheckpoint, found: Sequence[FoundCheckpoint]) -> dict[str, Any]:
    """Return what the table shows, bytes as numbers; ``problem`` instead if it cannot be used."""
    manifest, mark = checkpoint.manifest, checkpoint.verification
    if manifest is None:
        return {"step": checkpoint.step, "history": checkpoint.history, "problem": checkpoint.problem}
    return {
        "step": checkpoint.step,
        "history": checkpoint.history,
        "left": checkpoint.is_left,
        **({"problem": checkpoint.problem} if checkpoint.problem else {}),
        "run": manifest.run,
        "generation": manifest.generation,
        "committed_unix_s": manifest.committed_unix_s,
        "raw_bytes": manifest.raw_bytes,
        "stored_bytes": manifest.stored_bytes,
        "world_size": manifest.world_size,
        "layout": _layout(checkpoint),
        "bases": list(manifest.bases),
        "kept_for": needed_by(checkpoint, found),
        "kept": checkpoint.kept,
        "proven": checkpoint.is_proven,
        "suspect": checkpoint.is_suspect,
        "stale": manifest.stale,
        "content_digest": manifest.content_digest,
        "verification": None if mark is None else {name: getattr(mark, name) for name in _SHOWN_OF_MARK},
    }


def tensor_table(tensors: Sequence[TensorSummary]) -> RenderableType:
    """Return one row per tensor."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("tensor", "dtype", "shape"):
        table.add_column(column, overflow="fold")
    for column in ("shards", "raw", "stored"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("codec")
    for tensor in tensors:
        table.add_row(
            Text(tensor.name), tensor.dtype, " x ".join(map(str, tensor.global_shape)), str(tensor.shards),
            bytes_text(tensor.raw_bytes), bytes_text(tensor.stored_bytes), ", ".join(tensor.codecs),
        )  # fmt: skip
    return table


def tensor_as_json(tensor: TensorSummary) -> dict[str, Any]:
    """Return the fields."""
    return asdict(tensor)


def bytes_text(size: float) -> str:
    """Return a size as people read it, decimal units."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def _row(checkpoint: FoundCheckpoint, manifest: Manifest, builders: Sequence[int]) -> list[str | Text]:
    axes = _layout(checkpoint)
    layout = " x ".join(f"{axis} {size}" for axis, size in axes.items() if size > 1)
    state = [_PROBLEM] if checkpoint.problem else []
    if checkpoint.is_left:
        state.append(_LEFT)
    if manifest.stale:
        state.append("stale")
    if builders:
        state.append(f"kept for step{'s' if len(builders) > 1 else ''} {', '.join(map(str, builders))}")
    if checkpoint.kept:
        state.append(f"kept: {checkpoint.kept}")
    if checkpoint.is_proven:
        state.append("proven")
    if checkpoint.is_suspect:
        state.append("suspect")
    if (mark := checkpoint.verification) is not None:
        state.append(_DAMAGED if mark.damages else f"verified {_time(mark.verified_unix_s)}")
    return [
        bytes_text(manifest.raw_bytes),
        bytes_text(manifest.stored_bytes),
        f"{manifest.raw_bytes / manifest.stored_bytes:.2f}" if manifest.stored_bytes else "",
        _time(manifest.committed_unix_s),
        layout or f"{manifest.world_size} rank{'s' if manifest.world_size > 1 else ''}",
        ", ".join(map(str, manifest.bases)),
        Text(", ".join(state)),  # a reason is no markup
    ]


def _is_as_written(checkpoint: FoundCheckpoint) -> bool:
    """Return whether nothing is known but that each shard was read back before the commit, as every writer does."""
    return checkpoint.manifest is not None and not checkpoint.problem and checkpoint.verification is None


def _time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


def _layout(checkpoint: FoundCheckpoint) -> dict[str, int]:
    try:
        return layout_of(checkpoint)
    except (CheckpointUnreadable, CheckpointUnavailable):
        return {}  # `verify` reports it
