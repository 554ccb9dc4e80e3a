"""Retries operations that a network may make fail, with exponential backoff and jitter, and says what failed."""

import errno
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast_base.text import reason_of
from holdfast_checkpoint.checkpoint_errors import CheckpointError

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Waits between tries: twice as long each time, times a random number between a half and one."""

    first_s: float = 0.5
    """First wait in seconds, before the random number."""
    longest_s: float = 30.0
    """Longest wait in seconds."""
    draw: Callable[[], float] = random.random
    """Source of random numbers in [0, 1). They keep nodes that failed together from returning together."""

    def delays_s(self) -> Iterator[float]:
        """Yield the waits in seconds, forever."""
        delay_s = self.first_s
        while True:
            yield delay_s * (0.5 + self.draw() / 2)
            delay_s = min(2 * delay_s, self.longest_s)


@dataclass(kw_only=True)
class Retries:
    """Tries an operation up to ``limit`` times; counts tries and failures."""

    limit: int = 5
    backoff: Backoff = field(default_factory=Backoff)
    closing: threading.Event = field(default_factory=threading.Event)
    """Event that ends all waits: once it is set, nothing is retried."""
    attempts_total: int = 0
    """Tries so far."""
    failures_total: int = 0
    """Failed tries so far. A missing object is an answer and no failure."""

    def run(self, operation: Callable[[], Result], *, is_final: Callable[[Exception], bool]) -> Result:
        """Return what ``operation`` returns.

        Raises its last error after ``limit`` tries, and an error that ``is_final`` immediately.
        """
        delays_s = self.backoff.delays_s()
        for number in range(1, self.limit + 1):
            self.attempts_total += 1
            try:
                return operation()
            except Exception as error:
                if not isinstance(error, FileNotFoundError):
                    self.failures_total += 1
                if number == self.limit or is_final(error) or self.closing.wait(next(delays_s)):
                    raise
        raise AssertionError("limit is at least 1")


_CREDENTIALS = {
    "s3": "check the credentials in AWS_ACCESS_KEY_ID or ~/.aws and their rights on the bucket",
    "gs": "check the credentials in GOOGLE_APPLICATION_CREDENTIALS and their rights on the bucket",
    "file": "make it writable for the user of the agent",
}
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_OURS = ("s3", "s3a", "file", "memory")
_DENIED = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError")
_INVALID = ("ParamValidationError", "InvalidBucketName")
_FOLDER = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_FINAL = (*_FOLDER, CheckpointError, PermissionError, ImportError, ValueError)


def is_final(error: Exception) -> bool:
    """Return whether a retry cannot help."""
    return isinstance(error, _FINAL) or _is_denied(error) or type(error).__name__ in _INVALID


def describe(error: Exception, setting: str, url: str) -> str:
    """Return one line that names the setting and the fix. It holds no credentials."""
    protocol = url.partition("://")[0]
    if _is_denied(error):
        fix = _CREDENTIALS.get(protocol, f"check the credentials of {protocol}:// and their rights")
        return f"{setting} {url}: access denied: {fix}"
    if isinstance(error, FileNotFoundError):
        return f"{setting} {url}: no such bucket or folder: create it or correct {setting}"
    if type(error).__name__ in _INVALID:
        return f"{setting} {url}: no valid name of a bucket: correct {setting}"
    return f"{setting} {url}: {reason_of(error)}: check that the store can be reached from this node"


def missing_package(setting: str, url: str) -> str:
    """Return the message for a store whose package is not installed."""
    protocol = url.partition("://")[0]
    if protocol in _OURS:
        fix = "install the extra s3 of holdfast-torch"
    elif protocol in _PACKAGES:
        fix = f"install the extra s3 of holdfast-torch, and {_PACKAGES[protocol]}"
    else:
        fix = "install the fsspec implementation of it or use another URL"
    return f"{setting} {url}: a package for {protocol}:// is not installed: {fix}"


def _is_denied(error: Exception) -> bool:
    denied = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM)
    return denied or isinstance(error, PermissionError) or type(error).__name__ in _DENIED
