"""The places of checkpoints that a setting can name: a folder, or the URL of an object store."""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from holdfast_checkpoint.format.history import folder_name
from holdfast_checkpoint.format.keeping import KEPT
from holdfast_checkpoint.format.manifest import Manifest
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints
from holdfast_checkpoint.store.object_store import Bandwidth, open_store
from holdfast_checkpoint.store.retries import Retries
from holdfast_checkpoint.store.staged_checkpoints import StagedCheckpoints

_URL = re.compile(r"[a-z][a-z0-9+.-]*://")
_BUCKETS = ("s3", "s3a", "gs", "gcs")
PRIMARY = "--checkpoints"
SECONDARY = "--checkpoints-secondary"


class HistoryCheckpoints(Protocol):
    """The checkpoints of one history of a run, in a folder or in an object store. See :class:`CheckpointDirectory`."""

    @property
    def path(self) -> Path:
        """Local folder in which shards are written and read."""

    @property
    def removal_failures_total(self) -> int:
        """Failed attempts to remove old checkpoints."""

    @property
    def store_retries(self) -> Retries | None:
        """Counters of an object store's calls; None: the checkpoints are in ``path`` only."""

    def step_directory(self, step: int) -> Path:
        """Return the folder in which this node writes the shards of ``step``."""

    def check_writable(self) -> None:
        """Write something and remove it, to test the setting. Raises CheckpointError."""

    def publish(self, step: int, rank: int) -> None:
        """Bring a written shard to the place that all nodes see. Raises CheckpointError."""

    def commit_if_complete(self, step: int, world_size: int, run: str) -> Manifest | None:
        """Commit ``step`` if the shards of all ranks are there; else return None. Raises CheckpointError."""

    def manifests(self) -> dict[int, Manifest]:
        """Return the manifests of all committed checkpoints, by step. Raises CheckpointError."""

    def damaged(self) -> list[int]:
        """Return the steps whose manifest is damaged, ascending. Raises CheckpointError."""

    def missing(self, step: int) -> list[str]:
        """Return the names of a committed checkpoint's files that are missing or have another size."""

    def load_manifest(self, step: int) -> Manifest:
        """Return the manifest of ``step``. Raises CheckpointError."""

    def fetch(self, step: int, ranks: Collection[int] | None = None, *, again: bool = False) -> Path:
        """Return a directory from which the states of ``ranks`` (None: of all) can be read. Raises CheckpointError.

        ``again``: the local files have turned out to be damaged, so do not use them.
        """

    def base_for(self, step: int, *, run: str, world_size: int, generation: int, full_every: int) -> int | None:
        """Return the full checkpoint to which to store ``step`` as a difference, or None. Raises CheckpointError."""

    def keep(self, step: int, reason: str) -> None:
        """Pin a committed checkpoint, for a reason that people read. Raises CheckpointError."""

    def prove(self, step: int, finite_step: int) -> None:
        """Mark a committed checkpoint as proven by the finite loss of a later step. Raises CheckpointError."""

    def proven(self, steps: Iterable[int]) -> set[int]:
        """Return those of ``steps`` that a finite loss has followed. Raises CheckpointError."""

    def mark(self, step: int, name: str = KEPT) -> bytes | None:
        """Return the contents of a file that marks ``step``, or None. Raises CheckpointError."""

    def has_enough(self) -> bool:
        """Return whether enough whole checkpoints are committed here to remove older histories."""

    def retire(self, *, spare_proven: bool) -> None:
        """Remove this history's checkpoints, because a newer history has enough of its own.

        ``spare_proven``: its newest proven one stays.
        """

    def close(self) -> None:
        """Retry nothing from now on, because the agent ends."""


def is_url(location: str) -> bool:
    """Return whether a setting names an object store and not a folder."""
    return _URL.match(location) is not None


def check_location(setting: str, location: str) -> str:
    """Return a URL unchanged, a folder as an absolute path.

    Raises ValueError, in one line that names the setting, for a URL without a bucket, and for one that may hold
    credentials: URLs are logged.
    """
    if not is_url(location):
        return str(Path(location).absolute())
    parts = urlsplit(location)
    if "@" in parts.netloc or parts.query or parts.fragment:
        shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        raise ValueError(
            f"{setting} {shown}: give a URL without user, password, query or fragment: "
            "credentials are taken from the environment or from files"
        )
    if parts.scheme in _BUCKETS and not parts.netloc:
        raise ValueError(f"{setting} {location}: names no bucket: give {parts.scheme}://BUCKET/PREFIX")
    return location


def open_objects(
    setting: str, location: str, retries: Retries | None = None, bandwidth: Bandwidth | None = None
) -> ObjectCheckpoints:
    """Return the checkpoints at a URL, or in a folder that is treated as an object store.

    Raises CheckpointError if a package is missing, ValueError as :func:`check_location`.
    """
    checked = check_location(setting, location)
    url = checked if is_url(checked) else f"file://{checked}"
    return ObjectCheckpoints(open_store(setting, url, retries, bandwidth))


def open_history(
    location: str, number: int, staging: Path, kept: int, remote: ObjectCheckpoints | None
) -> HistoryCheckpoints:
    """Return one history of the place that ``--checkpoints`` names; ``remote`` has its objects if that is a URL."""
    folder = folder_name(number)
    if remote is not None:
        return StagedCheckpoints(remote.of_history(number), staging / folder, kept)
    return CheckpointDirectory(Path(location) / folder, kept)
