"""The key of a run, and the signatures that its processes put on what they write to Redis.

Redis is a place where others may write, too. So each value that passes through it is sealed: HMAC-SHA256 with the run's
key over the place, a number and the content. The place is the name of the Redis key, so that no value counts elsewhere.
The number grows with each value of a sender, so that a reader can tell an old value from the newest one.

What belongs to one start of a run is sealed with a key that is derived from the run's key and RunSpec.instance: nothing
of an earlier start of the same name is valid. The spec, the lease and the fence are sealed with the run's key alone,
because they are read before the instance is known. They have the number 0.
"""

import contextlib
import hmac
import os
import secrets
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_base.files import PARTIAL_SUFFIX, SecretError, make_directory, read_secret, replace_file

LEAST_CHARACTERS = 32
"""Length of the shortest key."""
_DIGEST_BYTES = 16
"""Half of the digest's bytes are enough (RFC 2104): what is forged must be tried on a running daemon or agent."""
_NUMBER_BYTES = 8
_VERSION = b"\x01"
_HEAD_BYTES = len(_VERSION) + _DIGEST_BYTES + _NUMBER_BYTES
_RESTART_GAP = 1 << 32
"""Numbers that a sender may have used since its start: those of four thousand million messages."""


class RunKeyError(ValueError):
    """The key of a run is missing or unfit. The message names the file, and the setting that names another one."""


class ForgedError(ValueError):
    """A value is not sealed with the run's key, or was written for another place."""


@dataclass(frozen=True)
class Opened:
    """A value whose signature is good."""

    number: int
    content: bytes


@dataclass(frozen=True)
class Seal:
    """Signs the values of one run, and opens those that are signed with the same key."""

    _key: bytes = field(repr=False)

    def close(self, place: str, content: bytes, number: int = 0) -> bytes:
        """Return the sealed value. ``place``: the Redis key, and what tells several values under it apart."""
        counted = number.to_bytes(_NUMBER_BYTES, "big") + content
        return _VERSION + self._digest(place, counted) + counted

    def open(self, place: str, sealed: bytes) -> Opened:
        """Return the content of a value that was sealed for ``place``. Raises ForgedError."""
        if len(sealed) < _HEAD_BYTES or not sealed.startswith(_VERSION):
            raise ForgedError("it is not signed")
        digest, counted = sealed[1 : 1 + _DIGEST_BYTES], sealed[1 + _DIGEST_BYTES :]
        if not hmac.compare_digest(digest, self._digest(place, counted)):
            raise ForgedError("it is not signed with the run's key")
        return Opened(int.from_bytes(counted[:_NUMBER_BYTES], "big"), counted[_NUMBER_BYTES:])

    def sign_text(self, place: str, text: str) -> str:
        """Return ``text`` and its signature, for values that scripts in Redis compare."""
        return f"{text} {self._digest(place, text.encode()).hex()}"

    def read_text(self, place: str, signed: bytes) -> str:
        """Return a text that was signed for ``place``. Raises ForgedError."""
        text, _, digest = signed.rpartition(b" ")
        if not hmac.compare_digest(digest, self._digest(place, text).hex().encode()):
            raise ForgedError("it is not signed with the run's key")
        return text.decode(errors="replace")

    def _digest(self, place: str, content: bytes) -> bytes:
        return hmac.digest(self._key, place.encode() + b"\0" + content, "sha256")[:_DIGEST_BYTES]


class RunKey:
    """The key of a run."""

    def __init__(self, secret: str, run: str) -> None:
        self._secret = secret.encode()
        self._run = run
        self.seal = Seal(self._derived("run"))
        """For what is read before the instance is known."""

    def seal_of(self, instance: str) -> Seal:
        """Return the seal of one start of the run."""
        return Seal(self._derived("instance", instance))

    def _derived(self, *names: str) -> bytes:
        return hmac.digest(self._secret, "\0".join(("holdfast", self._run, *names)).encode(), "sha256")


class RunKeyFile:
    """The file that holds the key of a run as its only line. Only its owner may write it, and others never read it."""

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self._run = run
        self._known: tuple[tuple[int, int, int], RunKey] | None = None

    def read(self) -> RunKey:
        """Return the key; read it again only if the file has changed. Raises RunKeyError.

        A file that is gone or unfit now does no harm if it was read before: what is known still counts.
        """
        try:
            return self._read()
        except RunKeyError:
            if self._known is None:
                raise
            return self._known[1]

    def _read(self) -> RunKey:
        try:
            status = self.path.stat()
        except OSError as error:
            raise RunKeyError(
                f"there is no key of run {self._run} at {self.path} ({error.strerror}): copy the file that `holdfast"
                " publish` has written, or name it with --run-key-file"
            ) from None
        mark = (status.st_mtime_ns, status.st_size, status.st_ino)
        if self._known is None or self._known[0] != mark:
            self._check(status)
            self._known = (mark, RunKey(self._secret(), self._run))
        return self._known[1]

    def _check(self, status: os.stat_result) -> None:
        # The group may read it: Kubernetes mounts secrets so.
        if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise RunKeyError(
                f"{self.path}: others can use this key of run {self._run} (mode {stat.S_IMODE(status.st_mode):04o}):"
                " make it private with `chmod 600`. If others may have read it, publish the run with a new one"
            )

    def _secret(self) -> str:
        try:
            secret = read_secret(self.path)
        except SecretError as error:
            raise RunKeyError(str(error)) from None
        if len(secret) < LEAST_CHARACTERS:
            raise RunKeyError(f"{self.path}: use {LEAST_CHARACTERS} characters or more, such as `openssl rand -hex 32`")
        return secret

    def replace(self) -> None:
        """Write a new random key. Raises OSError."""
        make_directory(self.path.parent)
        replace_file(self.path, f"{secrets.token_hex(32)}\n".encode(), mode=0o600)

    def make(self) -> None:
        """Write a random key unless the file exists. Of several processes that do so, one succeeds. Raises OSError."""
        make_directory(self.path.parent)
        # Under a name of its own first: another process must never read a part of it.
        partial = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}{PARTIAL_SUFFIX}")
        replace_file(partial, f"{secrets.token_hex(32)}\n".encode(), mode=0o600)
        with contextlib.suppress(FileExistsError):
            os.link(partial, self.path)
        partial.unlink()


class Numbers:
    """The numbers of one sender's values: each is larger than all before it, also those of an earlier process."""

    def __init__(self, now_ns: int = 0, *, earlier_start: int = 0) -> None:
        """Begin above an earlier process of this sender.

        ``now_ns``: time by the clock that all processes of the sender begin with; 0: this machine's.
        ``earlier_start``: :attr:`start` of the earlier process; 0: it is unknown, or there was none.
        """
        # The clock may have been set back in between.
        self.start = max(now_ns or time.time_ns(), earlier_start + _RESTART_GAP if earlier_start else 0)
        self._newest = self.start

    def next(self) -> int:
        """Return the number of the next value."""
        self._newest += 1
        return self._newest
