"""Requests taken apart, and answers put together."""

import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import IO, Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from holdfast_daemon.console.pages import incident_pages
from holdfast_daemon.console.serving.browser_json import encoded
from holdfast_daemon.console.serving.request_guard import RefusedRequestError

log = logging.getLogger(__name__)

_FAILED: set[str] = set()
"""Kinds of exceptions that were logged with their traceback."""

Handler = Callable[[Request], Awaitable[Response]]


def json_answer(value: object, status: int = 200) -> Response:
    """Return a JSON document, without numbers that are not finite."""
    return Response(encoded(value), status_code=status, media_type="application/json")


def contained(handler: Handler) -> Handler:
    """Answer with one line if a handler raises what nobody expected. The first of each kind is logged in full."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except (HTTPException, RefusedRequestError):
            raise
        except ClientDisconnect:
            raise RefusedRequestError(400, "the client has left before its request was whole") from None
        except Exception as error:
            name = type(error).__name__
            log.error("the console failed: %r", error, exc_info=None if name in _FAILED else error)
            _FAILED.add(name)
            return json_answer({"error": f"the console failed ({name}): the daemon's log says more"}, 503)

    return answer


async def refusal(_: Request, error: Exception) -> Response:
    """Return the error of a request that is refused."""
    assert isinstance(error, RefusedRequestError)
    return json_answer({"error": " ".join(str(error).split())[:500]}, error.status)


async def http_error(_: Request, error: Exception) -> Response:
    """Return an error of the router: there is no such path, or it takes another method."""
    status = error.status_code if isinstance(error, HTTPException) else 503
    return json_answer(
        {"error": "there is no such page" if status == 404 else "this path takes another method"}, status
    )


async def body_fields(request: Request) -> dict[str, Any]:
    """Return the JSON object in a request's body; an empty body is an empty object."""
    body = await request.body()
    try:
        fields = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise RefusedRequestError(400, "the body is no JSON object")
    return fields


def number_of_query(request: Request, name: str, default: int) -> int:
    """Return a whole number of the query. Raises RefusedRequestError."""
    text = request.query_params.get(name) or str(default)
    if len(text) > 18 or not text.removeprefix("-").isdecimal():
        raise RefusedRequestError(400, f"{name} is {text[:40]!r}: use a whole number")
    return int(text)


def file_answer(file: IO[bytes], kind: str, download_as: str) -> Response:
    """Return an open file, which is closed at the end. ``download_as``: name under which a browser keeps it, or ""."""
    headers = {}
    if download_as:
        safe = "".join(
            letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in download_as
        )
        headers["content-disposition"] = f'attachment; filename="{safe}"'
    parts: Iterator[bytes] = incident_pages.blocks(file)
    return StreamingResponse(parts, media_type=kind, headers=headers)
