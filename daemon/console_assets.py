"""Fetches the libraries of the console's pages, so that a browser needs no other host.

    python daemon/console_assets.py

`npm pack` fetches the exact versions below. An archive whose checksum differs from the recorded one is refused. The few
files that the pages import go to `daemon/holdfast_daemon/console/static/vendor/NAME/`, each folder with the licence and
a `VERSION` file: version, checksum of the archive, and the SHA-256 of each file. The files are committed: neither a
build nor an installation runs this script.

Three edits are made, because the pages have no build step and their security policy allows no inline import map:
the hooks import `./preact.js` by its path, uPlot's script exports its global, and lines that name source maps are
left out.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

VENDOR = Path(__file__).resolve().parent / "holdfast_daemon" / "console" / "static" / "vendor"

_SOURCE_MAP = re.compile(rb"^//# sourceMappingURL=.*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Library:
    """One package: what to fetch, and which files of it the pages import.

    Attributes:
        integrity: SHA-512 of the archive, as package managers write it.
        files: Name of the committed file, by the path in the archive.
        edits: Replacements (old, new) by the name of the committed file; each must apply exactly once.
        exports: Name of the global that a classic script leaves behind, by the name of the committed file.
    """

    name: str
    version: str
    licence: str
    integrity: str
    files: Mapping[str, str]
    edits: Mapping[str, tuple[bytes, bytes]] = field(default_factory=dict)
    exports: Mapping[str, str] = field(default_factory=dict)


LIBRARIES = (
    Library(
        "preact",
        "11.2.0",
        "MIT",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "hooks.js", "LICENSE": "LICENSE"},
        edits={"hooks.js": (b'from"preact"', b'from"./preact.js"')},
    ),
    Library(
        "htm",
        "3.1.1",
        "Apache-2.0",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.mjs": "htm.js", "LICENSE": "LICENSE"},
    ),
    Library(
        "uplot",
        "1.6.32",
        "MIT",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css", "LICENSE": "LICENSE"},
        exports={"uplot.js": "uPlot"},
    ),
)


class FetchError(Exception):
    """An archive is not the recorded one, or lacks what the pages import."""


def prepared(library: Library, name: str, content: bytes) -> bytes:
    """Returns a file as the pages need it: the edits of the library are made.

    Raises:
        FetchError: An edit does not apply exactly once.
    """
    content = _SOURCE_MAP.sub(b"", content)
    if name in library.edits:
        old, new = library.edits[name]
        if content.count(old) != 1:
            raise FetchError(f"{library.name}: {name} has {content.count(old)} times {old!r}: update its edit")
        content = content.replace(old, new)
    if name in library.exports:
        content = content.rstrip() + b"\nexport default " + library.exports[name].encode() + b";\n"
    return content


def version_file(library: Library, contents: Mapping[str, bytes]) -> str:
    """Returns the text of a folder's `VERSION` file: what it holds and where each byte comes from."""
    lines = [f"{library.name} {library.version}", f"licence {library.licence}", f"archive {library.integrity}"]
    lines += [f"{hashlib.sha256(contents[name]).hexdigest()}  {name}" for name in sorted(contents)]
    return "\n".join(lines) + "\n"


def fetch(library: Library, folder: Path) -> dict[str, bytes]:
    """Returns the files of a library by name, fetched into ``folder`` with `npm pack` and checked.

    Raises:
        FetchError: The archive is not the recorded one, or lacks a file.
        subprocess.CalledProcessError: npm could not fetch it.
    """
    subprocess.run(["npm", "pack", "--silent", f"{library.name}@{library.version}"], cwd=folder, check=True)
    archive = folder / f"{library.name}-{library.version}.tgz"
    digest = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != library.integrity:
        raise FetchError(f"{archive.name} has the checksum {digest}, not {library.integrity}: do not use it")
    contents = {}
    with tarfile.open(archive) as files:
        for path, name in library.files.items():
            try:
                member = files.extractfile(f"package/{path}")
            except KeyError:
                member = None
            if member is None:
                raise FetchError(f"{archive.name} has no {path}: update the list of files")
            contents[name] = prepared(library, name, member.read())
    return contents


def main() -> int:
    """Replaces the committed files by those of the versions above."""
    for library in LIBRARIES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                contents = fetch(library, Path(folder))
            except (FetchError, subprocess.CalledProcessError, OSError) as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
        place = VENDOR / library.name
        place.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (place / name).write_bytes(content)
        (place / "VERSION").write_text(version_file(library, contents))
        print(f"{library.name} {library.version}: {len(contents)} files in {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
