"""Keys of runs, and the values that are sealed with them."""

from pathlib import Path

from google.protobuf.message import Message

from holdfast_proto import keys, run_files
from holdfast_proto.run_key import Numbers, RunKey, RunKeyFile, Seal
from holdfast_proto.v1 import store_pb2 as store

SECRET = "5" * 64
NUMBERS = Numbers()
"""Those of all values of the tests."""


class KnownKey(RunKeyFile):
    """The key that all tests share, without a file."""

    def __init__(self, run: str) -> None:
        super().__init__(Path("/no") / f"{run}.key", run)
        self._key = RunKey(SECRET, run)

    def read(self) -> RunKey:
        """Return the key."""
        return self._key

    def make(self) -> None:
        """Do nothing: it is there."""


def write_key(folder: Path, run: str) -> Path:
    """Write that key where agents and daemons with this folder find it."""
    path = run_files.run_key(folder, run)
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def seal_of(run: str, instance: str = "i") -> Seal:
    """Return the seal of one start of a run."""
    return RunKey(SECRET, run).seal_of(instance)


def sealed(place: str, message: Message, *, run: str, instance: str = "i") -> bytes:
    """Return a message as it is in the store, as the newest value."""
    return seal_of(run, instance).close(place, message.SerializeToString(), NUMBERS.next())


def sealed_spec(spec: store.RunSpec) -> bytes:
    """Return a spec as it is in the store."""
    return RunKey(SECRET, spec.run).seal.close(keys.spec(spec.run), spec.SerializeToString())


def opened(place: str, data: object, *, run: str, instance: str = "i") -> bytes:
    """Return the content of a value in the store."""
    assert isinstance(data, bytes)
    return seal_of(run, instance).open(place, data).content
