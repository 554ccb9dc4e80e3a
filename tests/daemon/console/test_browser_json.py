"""Merge patches: applying the difference to the old document gives the new one."""

import random
from typing import Any

import pytest

from holdfast_daemon.console.serving.browser_json import difference


def applied(document: Any, patch: Any) -> Any:
    """Apply a merge patch as RFC 7386 says."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = applied(result.get(name), value)
    return result


def without_null(value: Any) -> Any:
    """A key with null and a key that is absent are the same to a reader."""
    if isinstance(value, dict):
        return {name: without_null(item) for name, item in value.items() if item is not None}
    return value


def made_up(chance: random.Random, depth: int = 3) -> dict[str, Any]:
    def value() -> Any:
        kind = chance.randrange(8 if depth else 6)
        text = "ab"[: chance.randrange(3)]
        plain = (None, chance.randrange(3), float(chance.randrange(3)), text, chance.random() < 0.5)
        if kind < 5:
            return plain[kind]
        if kind == 5:
            return [{"a": chance.randrange(2)} for _ in range(chance.randrange(3))]
        return made_up(chance, depth - 1)

    return {name: value() for name in "abcd" if chance.random() < 0.7}


@pytest.mark.parametrize("seed", range(300))
def test_the_differences_in_their_order_give_the_newest_document(seed: int) -> None:
    chance = random.Random(seed)
    old = made_up(chance)
    shown = without_null(old)
    for _ in range(5):
        new = made_up(chance)
        shown = applied(shown, difference(old, new))
        old = new
        assert without_null(shown) == without_null(new)


def test_what_is_equal_is_not_sent() -> None:
    old = {"a": {"b": 1, "c": [1, 2]}, "d": None}
    assert difference(old, {"a": {"b": 1, "c": [1, 2]}, "d": None}) == {}
    assert difference(old, {"a": {"b": 2, "c": [1, 2]}, "d": None}) == {"a": {"b": 2}}
    assert difference(old, {"a": None}) == {"a": None}
    assert difference({"a": 1}, {"a": True}) == {"a": True}
