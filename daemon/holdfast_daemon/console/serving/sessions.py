"""Who may use the console: two tokens, and the sessions that they open."""

import hmac
import json
import os
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from holdfast_base.files import PARTIAL_SUFFIX, distrust, replace_file

OPERATOR, VIEWER = "operator", "viewer"
ROLES = (OPERATOR, VIEWER)
IDLE_S = 12 * 3600.0
"""Time without a request after which a session ends."""
MOST_SESSIONS = 256
MOST_WRONG_TOKENS = 10
"""Wrong tokens in WRONG_TOKENS_S after which further ones are refused unseen. A right token always passes."""
WRONG_TOKENS_S = 60.0
_LEAST_CHARACTERS = 20


@dataclass(frozen=True)
class Tokens:
    """The secrets of a console. They are never logged: ``repr`` does not show them."""

    operator: str
    viewer: str

    def __repr__(self) -> str:
        return "Tokens(...)"

    def role(self, token: str) -> str | None:
        """Return the role that a token stands for, or None. It takes the same time for every wrong token."""
        given = token.encode(errors="replace")
        matches = {role: hmac.compare_digest(given, getattr(self, role).encode()) for role in ROLES}
        return next((role for role in ROLES if matches[role]), None)


def load_tokens(path: Path) -> Tokens:
    """Return the tokens in a file of mode 0600; create it with new ones if there is none.

    Raises OSError, in one line, if the file cannot be used, or if another user may know or have written it.
    """
    if not path.is_symlink() and not path.exists():
        _make_tokens(path)
    status = path.lstat()
    if problem := distrust(path):
        raise PermissionError(f"{path} {problem}: remove it, and the daemon makes new tokens")
    if status.st_mode & 0o077:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise PermissionError(f"{path} is open to others (mode {mode}): `chmod 600` it, or remove it for new tokens")
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            fields = json.loads(file.read(1 << 16))
        tokens = Tokens(*(_checked(fields[role]) for role in ROLES))
    except (ValueError, LookupError, TypeError, RecursionError):
        raise OSError(f"{path} holds no tokens of a console: remove it, and the daemon makes new ones") from None
    if tokens.operator == tokens.viewer:
        raise OSError(f"{path} has one token for both roles: remove it, and the daemon makes new ones")
    return tokens


def _make_tokens(path: Path) -> None:
    """Write new tokens, unless another daemon of this folder writes some at the same time: then its are the ones."""
    tokens = {role: secrets.token_urlsafe(32) for role in ROLES}
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
    replace_file(partial, (json.dumps(tokens) + "\n").encode(), mode=0o600)
    try:
        os.link(partial, path)
    except FileExistsError:
        pass
    finally:
        partial.unlink()


def _checked(token: object) -> str:
    if not isinstance(token, str) or len(token) < _LEAST_CHARACTERS or not token.isprintable():
        raise ValueError("a token is too short, or no text")
    return token


class Sessions:
    """Open sessions, in memory. Only the console's thread uses them."""

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._clock = clock
        self._open: dict[bytes, tuple[str, float]] = {}
        """Digest of a session's name -> role, and when it was last used. The longest unused comes first."""
        self._wrong_s: list[float] = []

    def login(self, token: str) -> tuple[str, str] | None:
        """Return the role of a token and the name of a new session; None: the token is wrong."""
        role = self.role_of_token(token)
        if role is None:
            return None
        name = secrets.token_urlsafe(32)
        while len(self._open) >= MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        self._open[_digest(name)] = (role, self._clock())
        return role, name

    def role_of_token(self, token: str) -> str | None:
        """Return the role that a token stands for; None: it is wrong, which is counted."""
        role = self._tokens.role(token)
        if role is None and not self.is_guessed:
            self._wrong_s.append(self._clock())
        return role

    @property
    def is_guessed(self) -> bool:
        """Whether many wrong tokens came lately: a client may be guessing."""
        self._wrong_s = [at_s for at_s in self._wrong_s if self._clock() - at_s < WRONG_TOKENS_S]
        return len(self._wrong_s) >= MOST_WRONG_TOKENS

    def role_of_session(self, name: str) -> str | None:
        """Return the role of an open session, which counts as used now; None: there is none."""
        digest = _digest(name)
        found = self._open.pop(digest, None)
        if found is None or self._clock() - found[1] > IDLE_S:
            return None
        self._open[digest] = (found[0], self._clock())
        return found[0]

    def logout(self, name: str) -> None:
        """End a session, if it is open."""
        self._open.pop(_digest(name), None)


def _digest(name: str) -> bytes:
    return sha256(name.encode(errors="replace")).digest()
