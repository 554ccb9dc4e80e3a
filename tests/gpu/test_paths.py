"""The list of CUDA paths is complete, and names only what there is."""

import ast
import re

import pytest

from benchmarks.gpu.parts import PARTS
from tests.gpu.paths import PATHS
from tests.gpu.scan import ROOT, cuda_uses, uses_in

LISTED = {(path.file, path.function) for path in PATHS}


def functions_of(source: str) -> set[str]:
    """Return the qualified names of all functions."""

    def names(node: ast.AST, scope: tuple[str, ...]) -> set[str]:
        found = set()
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*scope, child.name)
                found.add(".".join(inner))
            found |= names(child, inner)
        return found

    return {"<module>", *names(ast.parse(source), ())}


def test_every_function_that_uses_cuda_is_listed() -> None:
    missing = cuda_uses() - LISTED
    assert not missing, "add these to PATHS in tests/gpu/paths.py, each with the test that runs it on a GPU"


def test_every_listed_function_exists() -> None:
    assert len(LISTED) == len(PATHS)
    for path in PATHS:
        assert path.function in functions_of((ROOT / path.file).read_text()), f"{path.file} has no {path.function}"


def test_every_path_has_a_test_or_a_reason() -> None:
    tests = {
        f"{file.name}::{name}"
        for file in (ROOT / "tests" / "gpu").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    commands = {f"make gpu PART={part.name}" for part in PARTS}
    for path in PATHS:
        assert bool(path.test) != bool(path.why_none), path
        assert not path.test or path.test in tests | commands, f"{path.function}: there is no {path.test}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(t): return t.is_cuda", {"f"}),
        ("class C:\n    def m(self):\n        return torch.cuda.Event()", {"C.m"}),
        ("kind = 'cuda:0'", {"<module>"}),
        ("from x import CudaClock", {"<module>"}),
        ("def f(t: 'torch.cuda.Event') -> 'cuda':\n    'Of cuda.'\n    # cuda\n    return t", set()),
    ],
)
def test_a_use_is_found_in_code_and_not_in_texts_about_it(source: str, found: set[str]) -> None:
    assert uses_in(source) == found
