"""The pages show the examples as they are, and their snippets use the hooks as they are."""

import ast
import inspect
import re
from itertools import count
from pathlib import Path

import pytest
import torch

import holdfast_hooks
from docs.include_examples import ROOT, included, main, pages, shown

PAGES = [*pages(), ROOT / "examples" / "README.md", ROOT / "dashboards" / "README.md"]
EXAMPLE = '"""How to run it."""\n\nimport sys\n\n# [part]\nprint(\n    sys.argv,\n)\n# [end]\n'


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


def test_every_page_shows_the_examples_as_they_are() -> None:
    assert main(["--check"]) == 0
    showing = [page.name for page in PAGES if "<!-- examples/" in page.read_text()]
    assert showing == ["frameworks.md", "loss-policy.md", "multinode.md", "own-trainer.md"]


def test_a_page_that_shows_an_older_example_is_found() -> None:
    page = (ROOT / "docs" / "own-trainer.md").read_text()
    older = page.replace("torch.manual_seed(0)", "torch.manual_seed(1)", 1)
    assert older != page
    assert included(older) == page


def test_an_example_is_shown_without_its_docstring_and_its_markers() -> None:
    assert shown(EXAMPLE, None) == "import sys\n\nprint(\n    sys.argv,\n)\n"
    assert shown(EXAMPLE, "part") == "print(\n    sys.argv,\n)\n"


def test_a_part_that_an_example_has_not_or_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[other\] is there 0 times"):
        shown(EXAMPLE, "other")
    with pytest.raises(ValueError, match=r"\[part\] is there 2 times"):
        shown(EXAMPLE * 2, "part")


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name)
def test_snippets_use_hooks_that_exist(page: Path) -> None:
    for snippet in snippets(page):
        for node in ast.walk(ast.parse(snippet)):
            match node:
                case ast.Attribute(value=ast.Name(id="holdfast_hooks"), attr=name):
                    assert hasattr(holdfast_hooks, name), name
                case ast.Call(func=ast.Attribute(value=ast.Name(id="hooks"), attr=name), keywords=keywords):
                    parameters = inspect.signature(getattr(holdfast_hooks.Hooks, name)).parameters
                    assert {keyword.arg for keyword in keywords} <= set(parameters), ast.unparse(node)


def test_the_readmes_snippets_run() -> None:
    model = torch.nn.Linear(2, 1)
    given = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters()),
        "batches": count(),
        "tokens_per_step": 8,
        "train_step": float,
    }
    for snippet in snippets(ROOT / "README.md"):
        exec(compile(snippet, "README.md", "exec"), given)
    assert next(given["batches"]) == 1000  # type: ignore[call-overload]  # one for each step
