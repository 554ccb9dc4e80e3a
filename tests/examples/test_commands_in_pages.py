"""``holdfast`` accepts all commands that the pages show."""

import ast
import re
from pathlib import Path

import pytest

from docs.include_examples import ROOT, pages
from tests.examples.command_lines import block_commands, complaint, span_commands, unknown_parts

TEXTS = [
    *pages(),
    *sorted(ROOT.glob("*/README.md")),
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / "cli" / "holdfast_cli" / "flags").glob("*.py")),
]


def text(path: Path) -> str:
    """Return a page, or the docstrings of a module with their indented commands as blocks of code."""
    content = path.read_text()
    if path.suffix != ".py":
        return content
    tree = ast.parse(content)
    described: list[ast.Module | ast.ClassDef] = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    docstrings = "\n".join(ast.get_docstring(node) or "" for node in described).replace("``", "`")
    return re.sub(r"^ +(holdfast (?:.*\\\n)*.*)$", r"```\n\1\n```", docstrings, flags=re.M)


BLOCKS = [(path.name, words) for path in TEXTS for words in block_commands(text(path))]
SPANS = [(path.name, words) for path in TEXTS for words in span_commands(text(path))]


@pytest.mark.parametrize(("page", "words"), BLOCKS, ids=[f"{page}: {' '.join(words)}" for page, words in BLOCKS])
def test_a_command_in_a_block_of_code_is_understood(page: str, words: list[str]) -> None:
    assert complaint(words) == ""


@pytest.mark.parametrize(("page", "words"), SPANS, ids=[f"{page}: {' '.join(words)}" for page, words in SPANS])
def test_a_command_in_prose_has_its_name_and_its_options(page: str, words: list[str]) -> None:
    assert unknown_parts(words) == []


def test_the_pages_that_show_commands_are_read() -> None:
    assert {"README.md", "multinode.md", "own-trainer.md", "planning.md", "fsdp2.py", "start_flags.py"} <= {
        page for page, _ in BLOCKS
    }
    assert ["agent", "--run", "big"] in [words[:3] for _, words in BLOCKS]  # in a string for srun
    assert len(BLOCKS) > 30


@pytest.mark.parametrize(
    "command",
    [
        "holdfast run --rank 8 -- python train.py",
        "holdfast run --ranks eight -- python train.py",
        "holdfast incident show 0001",
        "holdfast incidents show 0001 --full",
        "holdfast checkpoint drill --rank 2",
        "holdfast agent --run big",
        "holdfast plan --config run.toml --parallel.dq 4",
        "holdfast run -- python -m holdfast_trainer --config run.toml --parallels.dp 2",
        "A=b holdfast status --wotch | less",
        "srun bash -c 'holdfast daemon --redis redis://head --directory d --controll c'",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    commands = list(block_commands(f"```sh\n$ {command}  # --not-this\n```\n"))
    assert len(commands) == 1
    assert complaint(commands[0])


@pytest.mark.parametrize("command", ["holdfast stat", "holdfast run --rank 8", "holdfast checkpoint lst"])
def test_a_wrong_command_in_prose_is_found(command: str) -> None:
    assert [unknown_parts(words) for words in span_commands(f"See `{command}`.")] != [[]]


def test_nothing_is_carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complaint(["run", "--", "touch", "ran"]) == ""
    assert list(tmp_path.iterdir()) == []
