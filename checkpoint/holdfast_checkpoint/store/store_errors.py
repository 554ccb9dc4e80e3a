"""Messages about errors of object stores, in words for the user."""

import errno

from holdfast_base.text import reason_of
from holdfast_checkpoint.checkpoint_errors import CheckpointError

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
