"""Uploads large files in parts to stores that speak S3, two parts at a time.

An upload that fails is ended, so that its parts do not stay in the bucket, and the next try begins again. If the
process dies, the parts stay until a lifecycle rule of the bucket removes them. s3fs itself repeats a part that fails.
"""

import contextlib
import hashlib
import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from holdfast_base.processes import lower_priority

PART_BYTES = 16 << 20
"""Smallest size of a part. A file that is no larger is put in one piece."""

_PARTS_AT_ONCE = 2
"""Parts that are sent at the same time: each is in memory as a whole."""
_MOST_PARTS = 10_000
"""S3's limit for one object."""
_MEBIBYTE = 1 << 20

_Upload = dict[str, str]
"""Bucket, Key and UploadId, as S3 takes them."""

log = logging.getLogger(__name__)


class _S3FileSystem(Protocol):
    """The part of s3fs's file system that is used here."""

    def split_path(self, path: str, /) -> tuple[str, str, str | None]: ...

    def call_s3(self, method: str, /, **parameters: object) -> dict[str, Any]: ...


class MultipartUploads:
    """Uploads large files by ``filesystem``, one of s3fs, and raises its errors.

    ``pace`` is called with the number of bytes before they are sent.
    """

    def __init__(self, filesystem: _S3FileSystem, pace: Callable[[int], None]) -> None:
        self._filesystem = filesystem
        self._pace = pace

    def put(self, source: Path, path: str) -> None:
        """Put a file as the object at ``path``. The caller checks whether it has arrived."""
        bucket, key, _ = self._filesystem.split_path(path)
        begun = self._filesystem.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
        upload = {"Bucket": bucket, "Key": key, "UploadId": str(begun["UploadId"])}
        try:
            self._put_parts(source, upload)
        except BaseException:
            self._abort(upload)
            raise

    def _put_parts(self, source: Path, upload: _Upload) -> None:
        numbers = range(1, math.ceil(source.stat().st_size / part_bytes(source)) + 1)
        with ThreadPoolExecutor(_PARTS_AT_ONCE, initializer=lower_priority) as threads:
            etags = threads.map(lambda number: self._put_part(upload, source, number), numbers)
            parts = [{"PartNumber": number, "ETag": etag} for number, etag in zip(numbers, etags, strict=True)]
        # s3fs repeats a call whose answer was lost. The upload is then complete, and the store knows it no longer.
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.call_s3("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts})

    def _put_part(self, upload: _Upload, source: Path, number: int) -> str:
        """Put a part and return its ETag."""
        with source.open("rb") as file:
            file.seek((number - 1) * part_bytes(source))
            data = file.read(part_bytes(source))
        self._pace(len(data))
        try:
            return str(self._filesystem.call_s3("upload_part", **upload, PartNumber=number, Body=data)["ETag"])
        except FileNotFoundError as error:
            # Somebody has ended the upload, for example a lifecycle rule. The bucket is not missing: try again.
            raise OSError(f"the upload of {upload['Key']} was ended by another process") from error

    def _abort(self, upload: _Upload) -> None:
        """End an upload that has failed. That is a courtesy: whatever goes wrong with it, the first error counts."""
        try:
            self._filesystem.call_s3("abort_multipart_upload", **upload)
        except Exception as error:  # noqa: BLE001 (see above)
            log.info("the parts of %s stay in the bucket: %s", upload["Key"], error)


def part_bytes(source: Path) -> int:
    """Return the bytes of all parts of a file but the last: at least PART_BYTES, more if there were too many parts."""
    needed = math.ceil(source.stat().st_size / _MOST_PARTS / _MEBIBYTE) * _MEBIBYTE
    return max(PART_BYTES, needed)


def etag_of(source: Path) -> str:
    """Return the ETag that S3 gives to an object put from this file.

    It is the MD5 sum; for an object in parts, the MD5 sum of the parts' sums, and their number. An object that is
    encrypted with a key of KMS has another ETag.
    """
    sums = [_md5(data).digest() for data in ranges(source, part_bytes(source))]
    if source.stat().st_size <= PART_BYTES:
        return (sums[0] if sums else _md5(b"").digest()).hex()
    return f"{_md5(b''.join(sums)).hexdigest()}-{len(sums)}"


def ranges(path: Path, nbytes: int) -> Iterator[bytes]:
    """Yield a file's contents in pieces of ``nbytes``; the last may be shorter."""
    with path.open("rb") as file:
        while data := file.read(nbytes):
            yield data


def _md5(data: bytes) -> "hashlib._Hash":
    return hashlib.md5(data, usedforsecurity=False)
