"""Readers of snapshots and checkpoints."""

import json
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.codec.codec_registry import PayloadError, codec_named
from holdfast_checkpoint.format.bad_loss import BadLossRecord
from holdfast_checkpoint.format.history import HistoryRecord
from holdfast_checkpoint.format.keeping import KEPT, PROVEN, is_proven, kept_reason, proof
from holdfast_checkpoint.format.manifest import MANIFEST, load_manifest
from holdfast_checkpoint.format.sealed_json import seal, unseal
from holdfast_checkpoint.format.shard_index import index_path, load_index, shard_path
from holdfast_checkpoint.format.shard_reader import verify_shard
from holdfast_checkpoint.format.slot_shard import write_shard
from holdfast_proto import snapshot
from holdfast_proto.snapshot import Slot, SnapshotError
from tests.fuzz.harness import Source
from tests.fuzz.mutations import changed_object, either, mutate_bytes, mutate_json
from tests.support.snapshots import Snapshots

BEFORE = Path(__file__).parents[1] / "data" / "before"
_CHECKPOINTS = BEFORE / "checkpoints"
_FULL = _CHECKPOINTS / "step-00000999"


def _sealed_again(random: Random, data: bytes) -> bytes:
    """Change a sealed document as a writer of another version would: the digest fits."""
    depth = random.choice((1, 900, 980))
    deep: Any = json.loads("[" * depth + "]" * depth)
    body = changed_object(random, unseal(data))
    return seal({name: deep if value == "DEEP" else value for name, value in body.items()})


def _slot_samples(folder: Path) -> list[bytes]:
    return [Snapshots(folder).slot(0, 5, tree={"model": {"tensor": 0}}).read_bytes()]


def _mutate_slot(random: Random, data: bytes) -> bytes:
    fields = list(snapshot._HEADER.unpack_from(data))
    offset, nbytes = fields[8], fields[9]
    if random.random() < 0.3:
        at = random.randrange(1, len(fields))
        fields[at] = random.choice((0, 1, 2, 3, 1 << 31, 1 << 20, 1 << 30))
        return snapshot._HEADER.pack(*fields) + data[snapshot._HEADER.size :]
    meta = mutate_json(random, data[offset : offset + nbytes])
    header = snapshot._HEADER.pack(*fields[:9], len(meta))
    return header + data[len(header) : offset] + meta + bytes(64)


def _read_slot(path: Path) -> None:
    with Slot(path) as slot:
        _ = slot.header
        meta = slot.meta()
        for entry in meta.tensors:
            with slot.tensor_bytes(entry) as view:
                assert len(view) == entry.nbytes
        meta.encode()


def _write_slot_bomb(path: Path) -> None:
    with path.open("wb") as file:
        file.write(snapshot._HEADER.pack(snapshot.MAGIC, 2, 0, 1, 5, 0, 0, 0, 4096, (400 << 20) - 4096))
        file.truncate(400 << 20)  # the slot itself is mapped


def _payload_samples(_: Path) -> list[bytes]:
    """Return tensors with their descriptors in front: length, JSON, payload."""
    found = []
    values = np.random.default_rng(1).normal(size=3000).astype(np.float32).tobytes()
    for name in ("byte-planes", "raw"):
        parts: list[bytes] = []
        codec = codec_named(name)
        descriptor = codec.encode(memoryview(values), "float32", lambda part, parts=parts: parts.append(bytes(part)))  # type: ignore[misc]
        facts = {"codec": name, "dtype": "float32", "descriptor": descriptor, "nbytes": len(values)}
        found.append(_framed(facts, b"".join(parts)))
    return found


def _framed(facts: Any, payload: bytes) -> bytes:
    text = json.dumps(facts).encode()
    return struct.pack("<I", len(text)) + text + payload


def _parted(data: bytes) -> tuple[Any, bytes]:
    (length,) = struct.unpack_from("<I", data)
    return json.loads(data[4 : 4 + length]), data[4 + length :]


def _mutate_descriptor(random: Random, data: bytes) -> bytes:
    facts, payload = _parted(data)
    if isinstance(facts["descriptor"], dict):
        facts["descriptor"] = changed_object(random, facts["descriptor"])
        if random.random() < 0.5:
            facts["nbytes"] = random.choice((0, 1, 12000, 12001, 1 << 30, 1 << 45, (1 << 63) - 1))
    else:
        facts["nbytes"] = random.choice((0, 1, 12001, 1 << 45))
        facts["descriptor"] = random.choice((None, {}, [], 1))
    return _framed(facts, payload)


def _mutate_payload(random: Random, data: bytes) -> bytes:
    facts, payload = _parted(data)
    return _framed(facts, mutate_bytes(random, payload))


def _read_payload(path: Path) -> None:
    try:
        facts, payload = _parted(path.read_bytes())
        codec, arguments = codec_named(facts["codec"]), (facts["dtype"], facts["descriptor"], facts["nbytes"], None)
    except (ValueError, LookupError, TypeError, struct.error, RecursionError):
        return  # the frame is this file's own, and not part of a checkpoint
    if not isinstance(facts["nbytes"], int) or not isinstance(facts["dtype"], str):
        return
    codec.needs_previous(facts["descriptor"])
    for _ in codec.decode(BytesIO(payload), *arguments):
        pass


def _descriptor_bomb(path: Path) -> None:
    descriptor = {"chunk_bytes": 1 << 45, "stored_bytes": [9], "needs_previous": False}
    path.write_bytes(
        _framed({"codec": "byte-planes", "dtype": "uint8", "descriptor": descriptor, "nbytes": 1 << 45}, b"123456789")
    )


def _index_samples(folder: Path) -> list[bytes]:
    values = np.random.default_rng(1).normal(size=3000).astype(np.float32).tobytes()
    slot = Snapshots(folder).slot(0, 5, tensors={"model": values, "nothing": b""}, dtype="float32", tree={"tensor": 0})
    write_shard(slot, folder, run="run", world_size=1)
    index = index_path(folder, 0)
    index.with_suffix(".sound").write_bytes(index.read_bytes())
    return [index.read_bytes()]


def _read_index(path: Path) -> None:
    """Read the index, and with it the shard next to it."""
    verify_shard(shard_path(path.parent, 0), load_index(path.parent, 0))


def _index_bomb(path: Path) -> None:
    body = unseal(path.with_suffix(".sound").read_bytes())
    body["tensors"][0]["entry"]["nbytes"] = 1 << 45
    body["tensors"][0]["descriptor"]["chunk_bytes"] = 1 << 45
    path.write_bytes(seal(body))


def _large_index(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def _of_file(path: Path) -> Callable[[Path], list[bytes]]:
    return lambda _: [path.read_bytes()]


def _read_marks(path: Path) -> None:
    data = path.read_bytes()
    for name in (KEPT, PROVEN):
        (path.parent / name).write_bytes(data)
    kept_reason(path.parent)
    is_proven(path.parent)
    BadLossRecord.decode(data)


_sealed = either(_sealed_again, mutate_json)

SOURCES = (
    Source(
        name="slot snapshot",
        read=_read_slot,
        errors=(SnapshotError,),
        samples=_slot_samples,
        mutate=_mutate_slot,
        bombs={"meta of 400 MiB": _write_slot_bomb},
    ),
    Source(
        name="codec",
        read=_read_payload,
        errors=(PayloadError,),
        samples=_payload_samples,
        mutate=either(_mutate_descriptor, _mutate_payload),
        bombs={"chunk of 2^45 bytes": _descriptor_bomb},
    ),
    Source(
        name="shard index",
        read=_read_index,
        errors=(CheckpointError,),
        samples=_index_samples,
        mutate=_sealed,
        bombs={"tensor of 2^45 bytes": _index_bomb, "file of 1 GiB": _large_index},
        file="rank-00000.json",
    ),
    Source(
        name="manifest",
        read=lambda path: load_manifest(path.parent),
        errors=(CheckpointError,),
        samples=_of_file(_FULL / MANIFEST),
        mutate=_sealed,
        file=MANIFEST,
    ),
    Source(
        name="history record",
        read=lambda path: HistoryRecord.decode(path.read_bytes()),
        errors=(ValueError,),
        samples=_of_file(_CHECKPOINTS / "history-0001.json"),
        mutate=_sealed,
    ),
    Source(
        name="marks of a checkpoint",
        read=_read_marks,
        errors=(),
        samples=lambda _: [proof(7), seal({"reason": "kept", "kept_unix_s": 1.0})],
        mutate=_sealed,
    ),
)
