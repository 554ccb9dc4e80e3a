"""Finds what looks like a checkpoint in a folder, and tells whether its writer has finished it."""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from holdfast_checkpoint.guard.damage import has_vanished
from holdfast_checkpoint.guard.dcp_folder import METADATA, SUFFIX

TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron's file next to the checkpoints. It names the newest complete one."""

MEGATRON_METADATA = "metadata.json"
"""File that Megatron writes last into a ``torch_dist`` checkpoint, after the index of torch. It loads none without."""

_MEGATRON_COMMON = "common.pt"
_FILES = (".ckpt", ".pt", ".pth")
_TRAINER_STATE = "trainer_state.json"
"""File that the Trainer of Hugging Face writes last."""
_TRAINER_FOLDER = re.compile(r"checkpoint-\d+")
_TRAINER_FILES = re.compile(
    r"(training_args\.bin|optimizer\.(pt|bin)|scheduler\.pt|rng_state(_\d+)?\.pth)$"
    r"|((pytorch_)?model|adapter_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)$"
    r"|pytorch_model_fsdp|optimizer_\d+/|global_step\d+/"
)
_ACCELERATE_FILES = ("random_states_", "scheduler.bin", "sampler")
"""Beginnings of names of files that accelerate writes into folders of the same name, without the Trainer's file."""
_CONTENT = (SUFFIX, ".safetensors", ".ckpt", ".pt", ".pth", ".bin")
_TEMPORARY = re.compile(r"^(\.|tmp|_tmp)|(\.tmp|\.temp|\.partial|\.incomplete|-tmp|_tmp|~)$|\.tmp[-_.]", re.IGNORECASE)
_STEP = re.compile(r"step[=_-]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_SHARD = re.compile(r"-\d{5}-of-(\d{5})\.(safetensors|bin)$")
_ITERATION = re.compile(r"^iter_(\d+)$")
_DEEPEST = 6
_MOST_FILES = 200_000


@dataclass(frozen=True, order=True)
class FileState:
    """What shows that a file has changed."""

    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class Candidate:
    """A file or a folder that looks like a checkpoint, as it was at one moment."""

    path: Path
    files: Mapping[str, FileState]
    """File -> its state. Names are relative to ``path``; that of a single file is empty."""
    step: int | None
    """Step in its name, if there is one."""
    unfinished: str
    """What its writer writes last and has not written; empty: it looks complete."""

    is_marked: bool
    """Whether its writer leaves a mark at its end, so that it cannot be half written if ``unfinished`` is empty."""

    @property
    def name(self) -> str:
        """Name of the file or folder."""
        return self.path.name

    @property
    def newest_mtime_s(self) -> float:
        """Unix time of the newest change of a file."""
        return max((file.mtime_ns for file in self.files.values()), default=0) / 1e9

    def file(self, name: str) -> Path:
        """Return the path of one of its files."""
        return self.path / name if name else self.path


class NotACheckpointError(Exception):
    """A folder holds no file of a checkpoint."""


def find_candidates(folder: Path) -> list[Path]:
    """Return the files and folders in ``folder`` that may be checkpoints. A link to another of them counts once.

    ``folder`` itself is the only one if it is a checkpoint. Raises OSError if it cannot be listed.
    """
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    if _is_checkpoint_itself([entry.name for entry in found]):
        return [folder]
    paths = [folder / entry.name for entry in found if not _TEMPORARY.search(entry.name) and _may_be(entry)]
    own = {path.name for path in paths if not path.is_symlink()}
    here = folder.resolve()
    return [path for path in paths if not (path.is_symlink() and _target_in(path, here) in own)]


def look_at(path: Path) -> Candidate:
    """Return a candidate as it is now.

    Raises NotACheckpointError if it holds no file of a checkpoint, OSError if it cannot be read.
    """
    described = path.stat()
    if stat.S_ISREG(described.st_mode):
        return Candidate(path, {"": _state(described)}, step_in(path.name), "", is_marked=False)
    files = dict(islice(_files_below(path, "", _DEEPEST), _MOST_FILES + 1))
    if len(files) > _MOST_FILES:
        raise NotACheckpointError(f"{path.name} holds more than {_MOST_FILES} files")
    if not any(name.endswith(_CONTENT) or Path(name).name == METADATA for name in files):
        raise NotACheckpointError(f"{path.name} holds no file of a checkpoint")
    return Candidate(path, files, step_in(path.name), _unfinished(path, files), _is_marked(path, files))


def step_in(name: str) -> int | None:
    """Return the step that a name holds, or None: 200 for ``epoch=1-step=200.ckpt``, 100 for ``iter_0000100``."""
    found = _STEP.search(name) or _NUMBER.search(name)
    return int(found[1]) if found and len(found[1]) <= 15 else None


def _is_checkpoint_itself(names: list[str]) -> bool:
    """Return whether a folder with these names is one checkpoint, and no folder of them.

    Trainers leave the final model next to their checkpoints, so a model alone does not decide.
    """
    if any(name == METADATA or name.endswith(SUFFIX) for name in names):
        return True
    has_numbered = any(step_in(name) is not None and "." not in name for name in names)
    return any(name.endswith(".safetensors") for name in names) and not has_numbered


def _may_be(entry: "os.DirEntry[str]") -> bool:
    try:
        if entry.is_dir():
            return True
        is_named = entry.name.endswith(".ckpt") or (entry.name.endswith(_FILES) and step_in(entry.name) is not None)
        return is_named and entry.is_file()
    except OSError:
        return False


def _target_in(link: Path, folder: Path) -> str | None:
    with suppress(OSError, RuntimeError):
        target = link.resolve(strict=True)
        return target.name if target.parent == folder else None
    return None


def _state(described: os.stat_result) -> FileState:
    return FileState(described.st_size, described.st_mtime_ns, described.st_ino)


def _files_below(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, FileState]]:
    """Yield all files. Folders behind links are left out: they may lead anywhere."""
    with os.scandir(folder / prefix) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            try:
                if entry.is_dir(follow_symlinks=False):
                    if depth:
                        yield from _files_below(folder, f"{name}/", depth - 1)
                elif entry.is_file():
                    yield name, _state(entry.stat())
            except OSError as error:
                if not has_vanished(error):
                    raise


def _is_marked(path: Path, files: Mapping[str, FileState]) -> bool:
    marks = (METADATA, ".index.json", _TRAINER_STATE)
    return any(name.endswith(marks) for name in files) or _tracked(path) is not None


def _unfinished(path: Path, files: Mapping[str, FileState]) -> str:
    """Return what is still to be written, by the marks of each framework."""
    folders = {name.rpartition("/")[0] for name in files if name.endswith(SUFFIX)}
    for folder in sorted(folders):
        prefix = f"{folder}/" if folder else ""
        marks = (METADATA, MEGATRON_METADATA) if f"{prefix}{_MEGATRON_COMMON}" in files else (METADATA,)
        for mark in marks:
            if prefix + mark not in files:
                return prefix + mark
    if _TRAINER_STATE not in files and _is_of_trainer(path, files):
        return _TRAINER_STATE
    shards = [(name, found) for name in files if (found := _SHARD.search(name))]
    for name, found in shards:
        index = f"{name[: found.start()]}.{found[2]}.index.json"
        if int(found[1]) > 1 and index not in files:
            return index
    return _behind_tracker(path)


def _is_of_trainer(path: Path, files: Mapping[str, FileState]) -> bool:
    """Return whether the Trainer of Hugging Face writes this folder: by its files, or by those of its neighbours."""
    if _TRAINER_FOLDER.fullmatch(path.name) is None or any(name.startswith(_ACCELERATE_FILES) for name in files):
        return False
    return any(_TRAINER_FILES.match(name) for name in files) or any(
        (neighbour / _TRAINER_STATE).exists() for neighbour in path.parent.glob("checkpoint-*")
    )


def _behind_tracker(path: Path) -> str:
    """Return Megatron's tracker if it does not name this checkpoint or a newer one."""
    newest = _tracked(path)
    if newest is None or newest == "release":
        return ""  # without a tracker, the time without changes decides
    return "" if newest.isdigit() and int(newest) >= int(path.name.removeprefix("iter_")) else TRACKER


def _tracked(path: Path) -> str | None:
    """Return what Megatron's tracker says; None if there is none, or if the name is not one of Megatron's."""
    if _ITERATION.match(path.name) is None:
        return None
    try:
        with (path.parent / TRACKER).open("rb") as file:
            return file.read(64).decode(errors="replace").strip()
    except OSError:
        return None


def shards_of(index: bytes) -> set[str]:
    """Return the files that an index of Hugging Face names. Raises ValueError if it is none."""
    document = json.loads(index)
    named = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise ValueError("it has no weight_map")
    return set(named.values())
