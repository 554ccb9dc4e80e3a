"""The tiers of tests are those of docs/testing.md. A test in no tier, or in the wrong one, is found here."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.tiers import expect_system_marker

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "testing.md"


def marked(marker: str) -> Iterator[str]:
    """Yield the names of the tests that have a marker themselves, and not through their module."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
                if f"pytest.mark.{marker}" in decorators:
                    yield node.name


def test_the_slice_is_what_the_page_lists() -> None:
    listed = re.findall(r"^ *\|[^|]+\| `(test_\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(marked("slice")) == sorted(listed) != []


def request_of(*markers: str) -> pytest.FixtureRequest:
    node = SimpleNamespace(nodeid="a test", get_closest_marker=lambda name: name if name in markers else None)
    return cast(pytest.FixtureRequest, cast(Any, SimpleNamespace(node=node)))


def test_a_test_with_real_processes_is_refused_unless_it_is_marked() -> None:
    expect_system_marker(request_of("system"))
    with pytest.raises(pytest.fail.Exception, match=r"a test starts real processes: mark it with pytest\.mark\.system"):
        expect_system_marker(request_of("slice"))


@pytest.mark.parametrize("target", ["test", "test-system", "soak", "gpu"])
def test_every_tier_has_a_command_that_the_page_names(target: str) -> None:
    makefile = (TESTS.parent / "Makefile").read_text()
    assert re.search(rf"^{target}: setup.*  ## ", makefile, re.MULTILINE)
    assert f"`make {target}`" in PAGE.read_text()
