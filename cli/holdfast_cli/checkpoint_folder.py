"""The folder in which commands look at checkpoints; of those at a URL it is temporary, and holds what is needed."""

import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from holdfast_agent.checkpoint_download import CheckpointDownload
from holdfast_agent.locations import PRIMARY, is_url
from holdfast_agent.object_checkpoints import ObjectCheckpoints, kept_name, manifest_name, step_name, steps_of
from holdfast_cli.checkpoint_location import open_remote
from holdfast_cli.errors import CommandError
from holdfast_proto.checkpoint import keeping
from holdfast_proto.checkpoint.errors import CheckpointError
from holdfast_proto.checkpoint.shard_index import step_directory


class CheckpointFolder(Protocol):
    """Checkpoints as a local folder. From the start it holds what tells the checkpoints apart.

    ``fetch`` and ``fetch_indexes`` raise CheckpointError, CheckpointUnreadable if something is missing or damaged.
    """

    path: Path

    def fetch(self, step: int) -> None:
        """Have all of a checkpoint there, and what it builds on."""

    def fetch_indexes(self, step: int) -> None:
        """Have the indexes of all ranks there."""

    def release(self, step: int) -> None:
        """Let a checkpoint go when its time has come. Raises CheckpointError."""

    def named(self, text: str) -> str:
        """Return a message as it is to be shown: it names the place that the user has named."""


class LocalFolder:
    """A folder on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fetch(self, step: int) -> None:
        """Nothing: it is there."""

    def fetch_indexes(self, step: int) -> None:
        """Nothing: they are there."""

    def release(self, step: int) -> None:
        """Remove the mark."""
        keeping.release(step_directory(self.path, step))

    def named(self, text: str) -> str:
        """Return it as it is."""
        return text


class DownloadedFolder:
    """What has been fetched of the checkpoints in a store into a temporary folder."""

    def __init__(self, remote: ObjectCheckpoints, path: Path) -> None:
        self.path = path
        self._remote = remote
        names = remote.store.listing().keys()
        for step in steps_of(names):
            self._fetch_overview(step, names)

    def fetch(self, step: int) -> None:
        """Download the shards."""
        CheckpointDownload(self._remote, step, self.path).fetch()

    def fetch_indexes(self, step: int) -> None:
        """Download the indexes."""
        CheckpointDownload(self._remote, step, self.path).fetch_indexes()

    def release(self, step: int) -> None:
        """Remove the mark in the store."""
        self._remote.store.remove([kept_name(step)])

    def named(self, text: str) -> str:
        """Return it with the URL in the place of the temporary folder."""
        return text.replace(str(self.path), self._remote.store.url)

    def _fetch_overview(self, step: int, names: Set[str]) -> None:
        """Download the manifest, the mark and the index of the last rank, which tells the layout."""
        step_directory(self.path, step).mkdir()
        indexes = [name for name in names if name.startswith(f"{step_name(step)}/rank-") and name.endswith(".json")]
        for name in {manifest_name(step), kept_name(step), *sorted(indexes)[-1:]} & names:
            (self.path / name).write_bytes(self._remote.store.read(name))


@contextmanager
def open_folder(location: str) -> Iterator[CheckpointFolder]:
    """Yield the checkpoints at a path or URL. Raises CommandError, and lets its messages name the location."""
    if not is_url(location):
        yield LocalFolder(Path(location))
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-checkpoints-") as temporary:
        try:
            folder = DownloadedFolder(open_remote(PRIMARY, location), Path(temporary))
        except CheckpointError as error:
            raise CommandError(str(error)) from None
        try:
            yield folder
        except CommandError as error:
            error.args = (folder.named(str(error)),)
            raise
