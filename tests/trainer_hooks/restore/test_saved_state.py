"""The saved state of all ranks, put together: which of several tensors of one name counts, and what is incomplete."""

from pathlib import Path
from typing import Any

import pytest

from holdfast_checkpoint.format.durable import NewFile, write_file
from holdfast_checkpoint.format.manifest import MANIFEST, describe
from holdfast_checkpoint.format.shard_index import ShardIndex, index_path, shard_path
from holdfast_checkpoint.format.shard_writer import ShardWriter
from holdfast_hooks import ConfigurationError
from holdfast_hooks.restore.reshard import merge
from holdfast_hooks.restore.saved_state import SavedState
from holdfast_proto.snapshot import TensorEntry

Part = tuple[str, int, bytes, int | None]
"""Name, offset in a whole of eight bytes, bytes, writer."""


def commit(directory: Path, ranks: list[list[Part]]) -> Path:
    """Write a checkpoint in which every rank has these parts."""
    indexes = []
    for rank, parts in enumerate(ranks):
        with NewFile(shard_path(directory, rank)) as file:
            writer = ShardWriter(file)
            stored = []
            for name, offset, data, owner in parts:
                whole = (8,) if owner is not None else (len(data),)
                entry = TensorEntry(name, "uint8", (len(data),), 4096, len(data), whole, (offset,), owner)
                stored.append(writer.store(entry, memoryview(data)))
            file.flush()
            file.publish()
        tree = {"dict": [["number", rank], *([name, {"tensor": i}] for i, (name, *_) in enumerate(parts))]}
        index = ShardIndex(
            run="run", step=3, rank=rank, world_size=len(ranks), generation=1, slot_bytes=0, data_bytes=0,
            coordinates={}, tree=tree, tensors=tuple(stored), shard_bytes=writer.stored_bytes,
        )  # fmt: skip
        write_file(index_path(directory, rank), index.encode())
        indexes.append(index)
    write_file(directory / MANIFEST, describe(indexes).encode())
    return directory


def test_own_tensors_come_from_the_rank_modulo_the_writers_and_else_from_the_lowest(tmp_path: Path) -> None:
    ranks: list[list[Part]] = [
        [("a", 0, b"0", None)],
        [("a", 0, b"1", None), ("b", 0, b"1", None)],
        [("b", 0, b"2", None)],
    ]
    directory = commit(tmp_path, ranks)
    seen = {rank: SavedState.open(directory, rank).tensors for rank in (0, 1, 5)}
    found = {rank: {name: t.chunks[(0,)].rank for name, t in tensors.items()} for rank, tensors in seen.items()}
    assert found == {0: {"a": 0, "b": 1}, 1: {"a": 1, "b": 1}, 5: {"a": 0, "b": 2}}


def test_equal_parts_of_repeated_meshes_count_once(tmp_path: Path) -> None:
    halves: list[Part] = [("w", 0, b"1234", 0), ("w", 4, b"5678", 1)]
    saved = SavedState.open(commit(tmp_path, [[halves[0]], [halves[1]], [halves[0]], [halves[1]]]), rank=0)
    saved.tensors["w"].check()
    assert {offset: chunk.rank for offset, chunk in saved.tensors["w"].chunks.items()} == {(0,): 0, (4,): 1}


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([[("w", 0, b"12345678", 0)], [("w", 0, b"other567", 1)]], r"ranks 0 and 1 saved different parts.*by_name"),
        ([[("w", 0, b"12345678", 0)], [("w", 0, b"1234", None)]], r"rank 1 saved another tensor.*by_name"),
        ([[("w", 0, b"1234", 0)]], r"holds 4 of its 8 elements"),
    ],
)
def test_parts_that_make_no_whole_are_refused_by_name(tmp_path: Path, ranks: Any, message: str) -> None:
    saved = SavedState.open(commit(tmp_path, ranks), rank=0)
    with pytest.raises(ConfigurationError, match=f"cannot load w: .*{message}"):
        saved.tensors["w"].check()


def test_ranks_that_differ_in_what_must_agree_are_refused(tmp_path: Path) -> None:
    saved = SavedState.open(commit(tmp_path, [[("a", 0, b"0", None)], [("a", 0, b"1", None)]]), rank=0)
    saved.tensors["a"].check()
    with pytest.raises(ConfigurationError, match=r"cannot load a: ranks saved different tensors .*by_name"):
        saved.tensors["a"].check(must_agree=True)


def mapping(**items: Any) -> dict[str, Any]:
    return {"dict": [[key, value] for key, value in items.items()]}


def tensor(name: str) -> dict[str, str]:
    return {"tensor": name}


def test_where_this_rank_has_tensors_the_tree_is_as_the_live_one() -> None:
    saved = [mapping(first=tensor("first"), other=1), mapping(second=tensor("second"))]
    assert merge(mapping(second=tensor("x")), saved, lambda container, key: True) == mapping(second=tensor("second"))


def test_empty_mappings_are_filled_with_what_this_rank_wants_of_all() -> None:
    saved = [mapping(o=mapping(state=mapping(a=1))), mapping(o=mapping(state=mapping(b=2, c=3)))]
    live = mapping(o=mapping(state=mapping()))
    merged = merge(live, saved, lambda container, key: (container, key) != ("o/state", "c"))
    assert merged == mapping(o=mapping(state=mapping(a=1, b=2)))


def test_plain_values_are_the_preferred_ranks() -> None:
    saved = [mapping(steps=[1, 2], new=True), mapping(steps=[3], new=False)]
    assert merge(mapping(steps=[0]), saved, lambda container, key: True) == mapping(steps=[1, 2], new=True)
