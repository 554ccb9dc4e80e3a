"""Uploads in parts, to stores that speak S3. An upload that was cut off continues with the parts that the store has.

No state of an upload is kept here. The store lists the unfinished ones, and the size and MD5 sum (ETag) of each part.
A part with the right size and sum is not sent again. So the next try continues, and so does the next process. An object
appears when its upload is completed: a reader never sees half of one.
"""

import contextlib
import hashlib
import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast_checkpoint.priority import lower_priority

PART_BYTES = 16 << 20
"""Smallest size of a part. A file that is no larger is put in one piece."""

_PARTS_AT_ONCE = 2
"""Parts that are sent at the same time: each is in memory as a whole."""
_MOST_PARTS = 10_000
"""S3's limit for one object."""
_MEBIBYTE = 1 << 20

_Upload = dict[str, str]
"""Bucket, Key and UploadId: the parameters of S3's calls."""
_StoredPart = tuple[int, str]
"""Size and ETag."""

log = logging.getLogger(__name__)


class MultipartUploads:
    """Uploads large files by ``filesystem``, one of s3fs, and raises its errors.

    ``pace`` is called with the number of bytes before they are sent.
    """

    def __init__(self, filesystem: Any, pace: Callable[[int], None]) -> None:
        self._filesystem = filesystem
        self._pace = pace

    def put(self, source: Path, path: str) -> None:
        """Put a file as the object at ``path``. The caller checks whether it has arrived."""
        bucket, key, _ = self._filesystem.split_path(path)
        unfinished = self._unfinished(bucket, key)
        there = self._parts(unfinished) if unfinished else {}
        upload = unfinished or self._begin(bucket, key)
        numbers = range(1, math.ceil(source.stat().st_size / part_bytes(source)) + 1)
        with ThreadPoolExecutor(_PARTS_AT_ONCE, initializer=lower_priority) as threads:
            etags = threads.map(lambda number: self._put_part(upload, source, number, there.get(number)), numbers)
            parts = [{"PartNumber": number, "ETag": etag} for number, etag in zip(numbers, etags, strict=True)]
        # S3 forgets a completed upload. If the last try completed it and only the answer was lost, the object is there.
        with contextlib.suppress(FileNotFoundError):
            self._call("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts})

    def abort(self, folder: str, is_stale: Callable[[str], bool]) -> None:
        """Abort the unfinished uploads of objects below ``folder`` whose paths are stale: their parts cost money.

        S3 lists a thousand at a time; the rest is left for the next call.
        """
        bucket, prefix, _ = self._filesystem.split_path(folder)
        listed = self._call("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/" if prefix else "")
        for upload in listed.get("Uploads", ()):
            if is_stale(f"{bucket}/{upload['Key']}"):
                with contextlib.suppress(FileNotFoundError):  # another agent is faster
                    name = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                    self._call("abort_multipart_upload", Bucket=bucket, **name)

    def _begin(self, bucket: str, key: str) -> _Upload:
        begun = self._call("create_multipart_upload", Bucket=bucket, Key=key)
        return {"Bucket": bucket, "Key": key, "UploadId": str(begun["UploadId"])}

    def _unfinished(self, bucket: str, key: str) -> _Upload | None:
        """Return the newest unfinished upload of an object, or None. Without the right to list them, begin anew."""
        try:
            listed = self._call("list_multipart_uploads", Bucket=bucket, Prefix=key)
        except PermissionError:
            return None
        found = [upload for upload in listed.get("Uploads", ()) if upload["Key"] == key]
        if not found:
            return None
        newest = max(found, key=lambda upload: upload["Initiated"])
        log.info("the upload of %s continues with the parts that the store has", key)
        return {"Bucket": bucket, "Key": key, "UploadId": str(newest["UploadId"])}

    def _parts(self, upload: _Upload) -> dict[int, _StoredPart]:
        """Return the parts that have arrived, by number. Without the right to list them there are none."""
        parts: dict[int, _StoredPart] = {}
        marker: dict[str, int] = {}
        with contextlib.suppress(PermissionError), _going_on(upload):
            while True:
                listed = self._call("list_parts", **upload, **marker)
                for part in listed.get("Parts", ()):
                    parts[part["PartNumber"]] = (part["Size"], part["ETag"])
                if not listed.get("IsTruncated"):
                    break
                marker = {"PartNumberMarker": listed["NextPartNumberMarker"]}
        return parts

    def _put_part(self, upload: _Upload, source: Path, number: int, there: _StoredPart | None) -> str:
        """Send a part unless the store has the same one. Returns its ETag."""
        with source.open("rb") as file:
            file.seek((number - 1) * part_bytes(source))
            data = file.read(part_bytes(source))
        if there is not None and there[0] == len(data) and there[1].strip('"') == _md5(data).hexdigest():
            return there[1]
        self._pace(len(data))
        with _going_on(upload):
            return str(self._call("upload_part", **upload, PartNumber=number, Body=data)["ETag"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._filesystem.call_s3(method, **parameters)
        return answer


@contextlib.contextmanager
def _going_on(upload: _Upload) -> Iterator[None]:
    """Turn the error of an upload that another agent has aborted into one that is retried.

    The store reports it like a missing bucket, which is not retried.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise OSError(f"another agent has ended the upload of {upload['Key']}") from error


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
