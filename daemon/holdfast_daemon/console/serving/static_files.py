"""The files of the page: those of one folder, known when the console starts."""

from hashlib import sha256
from pathlib import Path

from starlette.responses import Response

from holdfast_daemon.console.serving.request_guard import RefusedRequestError

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".woff2": "font/woff2",
    ".png": "image/png",
    "": "text/plain; charset=utf-8",
}
_INDEX = "index.html"


class StaticFolder:
    """Serves what its list names, and nothing else: a path in a request is never joined to a path on disk."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.suffix in _KINDS
        }

    def answer(self, name: str, known: str) -> Response:
        """Return a file, or 304 if the browser has it. ``known``: the ETag that it has."""
        path = self._files.get(name or _INDEX)
        if path is None:
            raise RefusedRequestError(404, f"there is no /{name[:80]}")
        data = path.read_bytes()
        tag = f'"{sha256(data).hexdigest()[:32]}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if known == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, headers={**headers, "content-type": _KINDS[path.suffix]})
