"""Pings a service that expects signs of life. The daemon and the agents ping in the same way.

The URL of a failure follows the convention of healthchecks.io (https://healthchecks.io/docs/http_api/): the URL of
success, followed by ``/fail``.
"""

from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from holdfast_proto.http_post import HttpError, check_http_url, post
from holdfast_proto.secret_file import SecretError, read_secret

TIMEOUT_S = 10.0
_MOST_BODY_BYTES = 10_000
"""The service keeps no more of a body."""


class PingError(Exception):
    """A ping did not arrive; the message is one line without the URL, which is a secret."""


def ping(url_file: Path, body: str) -> None:
    """Say that all is well. Raises PingError."""
    _send(_url(url_file), body)


def ping_failure(url_file: Path, fail_url_file: Path | None, reason: str) -> None:
    """Say that something has failed. Raises PingError."""
    if fail_url_file is not None:
        _send(_url(fail_url_file), reason)
        return
    parts = urlsplit(_url(url_file))
    _send(urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/fail", parts.query, "")), reason)


def _url(path: Path) -> str:
    try:
        url = read_secret(path)
    except SecretError as error:
        raise PingError(str(error)) from None
    problem = check_http_url(url)
    if problem:
        raise PingError(f"{path}: the URL in it cannot be used: {problem}")
    return url


def _send(url: str, body: str) -> None:
    data = body.encode()[:_MOST_BODY_BYTES]
    try:
        answer = post(url, data, {"Content-Type": "text/plain; charset=utf-8"}, timeout_s=TIMEOUT_S)
    except HttpError as error:
        raise PingError(str(error)) from None
    if not 200 <= answer.status < 300:
        raise PingError(f"the service answers {answer.status}")
