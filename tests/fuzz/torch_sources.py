"""Readers of the files that other programs save with torch."""

import io
import json
import pickle
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save

from holdfast_checkpoint.guard.damage import DamagedFileError
from holdfast_checkpoint.guard.paced_reading import Pace, PacedFile
from holdfast_checkpoint.guard.torch_archive import TorchArchive, read_old_file
from holdfast_cli.checkpoints.exporting import MODEL, TREE
from holdfast_cli.checkpoints.importing import _read
from holdfast_cli.errors import CommandError
from holdfast_hooks import ConfigurationError
from holdfast_hooks.restore.slot_restore import restore
from holdfast_hooks.snapshots import slot_layout
from holdfast_hooks.state import random_states
from holdfast_hooks.state.encoding import encode_state
from holdfast_proto import snapshot
from holdfast_proto.snapshot import SnapshotError
from tests.fuzz.harness import Source
from tests.fuzz.mutations import either, mutate_bytes, mutate_json

_STATE = {"weight": torch.arange(6.0).reshape(2, 3), "step": torch.tensor(3)}
_PICKLE_NAME = "archive/data.pkl"


def _saved(value: Any, *, old: bool = False) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=not old)
    return stream.getvalue()


def _mutate_record(random: Random, data: bytes) -> bytes:
    """Change one record of an archive; the others and the directory stay sound."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice([_PICKLE_NAME] * 4 + list(records))
    records[name] = mutate_bytes(random, records[name])
    return _zipped(records, zipfile.ZIP_STORED)


def _zipped(records: dict[str, bytes], compression: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _archive_bomb(path: Path) -> None:
    """Write a small archive with a compressed record, which torch would unpack."""
    with zipfile.ZipFile(io.BytesIO(_saved(_STATE))) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    key = next(name for name in records if name.endswith("/data/0"))
    records[key] = bytes(64 << 20)
    path.write_bytes(_zipped(records, zipfile.ZIP_DEFLATED))


def _bytearray_bomb(path: Path) -> None:
    """Write a pickle that asks for a bytearray of 2^45 bytes."""

    class Large:
        def __reduce__(self) -> Any:
            return bytearray, (1 << 45,)

    with zipfile.ZipFile(io.BytesIO(_saved(_STATE))) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    records[_PICKLE_NAME] = pickle.dumps({"weight": Large()}, 2)
    path.write_bytes(_zipped(records, zipfile.ZIP_STORED))


def _read_archive(path: Path) -> None:
    with PacedFile(path, Pace()) as file:
        archive = TorchArchive(file)
        for _, tensor in archive.tensors():
            if tensor.is_dense:
                archive.place(tensor)
        archive.check_crcs()


def _read_old(path: Path) -> None:
    with PacedFile(path, Pace()) as file:
        read_old_file(file, set())


def _whole(_: Path) -> list[bytes]:
    tree = '{"dict": [["model", {"dict": [["weight", {"tensor": "weight"}]]}]]}'
    return [save({"weight": _STATE["weight"]}, metadata={TREE: tree}), save({"weight": _STATE["weight"]})]


def _mutate_header(random: Random, data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    text = mutate_json(random, data[8 : 8 + length])
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


class _Training:
    """A state with every kind of value, and one tensor in the optimizer's state that the live one lacks."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}


def _saved_slot(folder: Path) -> list[bytes]:
    training = _Training()
    training.model(torch.ones(1, 3)).sum().backward()
    training.optimizer.step()
    states = {name: stateful.state_dict() for name, stateful in training.state().items()}
    image = encode_state({**states, random_states.KEY: random_states.capture()})
    layout = slot_layout.lay_out(image, None)
    path = folder / "made.slot"
    snapshot.allocate(path, 1 << 16)
    with snapshot.Slot(path) as slot:
        slot.begin(generation=1, step=5, rank=0)
        slot_layout.SlotTensors(slot, layout.entries).copy(image.parts)
        meta = snapshot.Meta(image.tree, layout.entries)
        slot.commit(meta, data_bytes=layout.data_bytes, persist=False)
    return [path.read_bytes()]


def _mutate_meta(random: Random, data: bytes) -> bytes:
    """Change the JSON of a slot: half of the changes are within the nested state, and a quarter within one tensor."""
    fields = list(snapshot._HEADER.unpack_from(data))
    offset, nbytes = fields[8], fields[9]
    meta = json.loads(data[offset : offset + nbytes])
    part = random.choice(("tree", "tree", "tensors", "all"))
    if part == "all":
        text = mutate_json(random, json.dumps(meta).encode())
    else:
        changed = mutate_json(random, json.dumps(meta[part]).encode()).decode()
        text = json.dumps({**meta, part: "CHANGED"}).replace('"CHANGED"', changed).encode()
    header = snapshot._HEADER.pack(*fields[:9], len(text))
    return header + data[len(header) : offset] + text


def _restore_slot(path: Path) -> None:
    restore(path, _Training().state(), rank=0)


SOURCES = (
    Source(
        name="restore from a slot",
        read=_restore_slot,
        errors=(SnapshotError, ConfigurationError),
        samples=_saved_slot,
        mutate=_mutate_meta,
    ),
    Source(
        name="import of .pt",
        read=_read,
        errors=(CommandError,),
        samples=lambda _: [_saved(_STATE), _saved({MODEL: _STATE, "count": 3})],
        mutate=either(_mutate_record, mutate_bytes),
        bombs={"compressed archive": _archive_bomb, "bytearray of 2^45": _bytearray_bomb},
        file="state.pt",
    ),
    Source(
        name="import of .safetensors",
        read=_read,
        errors=(CommandError,),
        samples=_whole,
        mutate=_mutate_header,
        file="state.safetensors",
    ),
    Source(
        name="archive of torch",
        read=_read_archive,
        errors=(DamagedFileError,),
        samples=lambda _: [_saved(_STATE)],
        mutate=either(_mutate_record, mutate_bytes),
    ),
    Source(
        name="old file of torch",
        read=_read_old,
        errors=(DamagedFileError,),
        samples=lambda _: [_saved(_STATE, old=True)],
    ),
)
