"""Reads a secret, such as a token or a URL that must stay private, from the file that holds it.

Secrets are read each time they are used, so that a new one needs no restart, and are never kept, logged or published.
"""

import stat
from pathlib import Path

from holdfast_proto.regular_file import UnfitFileError, read_regular

MOST_BYTES = 16 * 1024


class SecretError(Exception):
    """A file holds no usable secret; the message is one line that names the file, and nothing of what is in it."""


def read_secret(path: Path) -> str:
    """Return the one line of a file, without white space around it. Raises SecretError."""
    try:
        data = read_regular(path, MOST_BYTES)
    except UnfitFileError as error:
        raise SecretError(f"{path}: {error.strerror}: name a file that holds a secret as its only line") from None
    except OSError as error:
        raise SecretError(f"{path}: {error.strerror}") from None
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable():
        raise SecretError(f"{path}: it holds no secret: write it as the only line")
    return text


def exposure(path: Path) -> str:
    """Return the warning about a secret that other users can read, or "" if they cannot."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""  # whoever reads it says so
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return ""
    return f"{path}: other users can read this secret (mode {stat.S_IMODE(mode):04o}): `chmod 600` makes it private"
