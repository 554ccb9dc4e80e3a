"""Tokens and sessions."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast_daemon.console.serving import sessions
from holdfast_daemon.console.serving.sessions import (
    IDLE_S,
    MOST_SESSIONS,
    MOST_WRONG_TOKENS,
    Sessions,
    Tokens,
    load_tokens,
)


class FakeClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


OPERATOR, VIEWER = "o" * 43, "v" * 43


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def it(clock: FakeClock) -> Sessions:
    return Sessions(Tokens(OPERATOR, VIEWER), clock)


def opened(it: Sessions, token: str = OPERATOR) -> str:
    """Return the name of a new session."""
    made = it.login(token)
    assert made is not None
    assert made[0] == it.role_of_session(made[1])
    return made[1]


def test_tokens_are_made_once_and_are_this_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "console-tokens.json"
    first = load_tokens(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_tokens(path) == first
    assert len({first.operator, first.viewer}) == 2
    assert first.operator not in repr(first)


def test_two_daemons_that_start_together_have_the_same_tokens(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(load_tokens, [tmp_path / "tokens.json"] * 8))
    assert len({tokens.operator for tokens in found}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o666])
def test_tokens_that_others_can_read_or_write_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens.json"
    load_tokens(path)
    path.chmod(mode)
    with pytest.raises(PermissionError, match=str(path)):
        load_tokens(path)


def test_a_link_is_refused(tmp_path: Path) -> None:
    load_tokens(tmp_path / "real.json")
    (tmp_path / "tokens.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(PermissionError, match="is not a regular file"):
        load_tokens(tmp_path / "tokens.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"operator": "short", "viewer": "x"}',
        '{"operator": 1, "viewer": 2}',
        json.dumps({"operator": "a" * 43, "viewer": "a" * 43}),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.json"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(OSError, match=r"remove it, and the daemon makes new ones$"):
        load_tokens(path)


def test_each_token_opens_its_own_role(it: Sessions) -> None:
    operator, viewer = opened(it), opened(it, VIEWER)
    assert (it.role_of_session(operator), it.role_of_session(viewer)) == ("operator", "viewer")
    assert (it.login("x" * 43), it.login("é" * 43), it.role_of_session("")) == (None, None, None)
    it.logout(operator)
    assert it.role_of_session(operator) is None


def test_a_session_ends_when_nobody_uses_it(it: Sessions, clock: FakeClock) -> None:
    name = opened(it)
    for idle_s, role in ((0.9 * IDLE_S, "operator"), (0.9 * IDLE_S, "operator"), (1.1 * IDLE_S, None)):
        clock.now_s += idle_s
        assert it.role_of_session(name) == role


def test_the_longest_unused_session_makes_room(it: Sessions) -> None:
    names = [opened(it) for _ in range(MOST_SESSIONS)]
    assert it.role_of_session(names[0]) == "operator"
    opened(it)
    assert [it.role_of_session(name) for name in names[:2]] == ["operator", None]


def test_many_wrong_tokens_are_noticed_and_a_right_one_passes(it: Sessions, clock: FakeClock) -> None:
    for _ in range(MOST_WRONG_TOKENS):
        assert not it.is_guessed
        assert it.login("wrong") is None
    assert it.is_guessed
    opened(it)
    clock.now_s += sessions.WRONG_TOKENS_S + 1.0
    assert not it.is_guessed
