"""Finds the functions of our packages whose code has to do with CUDA."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = ("base", "proto", "checkpoint", "trainer_hooks", "agent", "daemon", "trainer", "cli")
MODULE_LEVEL = "<module>"


def cuda_uses(root: Path = ROOT) -> set[tuple[str, str]]:
    """Return (file, qualified name of the function) of every use of CUDA, and (file, ``<module>``) outside of one."""
    return {
        (str(path.relative_to(root)), where)
        for component in COMPONENTS
        for path in sorted((root / component).rglob("*.py"))
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
        for where in uses_in(path.read_text(encoding="utf-8"))
    }


def uses_in(source: str) -> set[str]:
    """Return the qualified names of the functions that use CUDA. Docstrings, comments and annotations are no use."""
    return set(_visit(ast.parse(source), ()))


def _visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[str]:
    if _names_cuda(node):
        yield ".".join(scope) or MODULE_LEVEL
    inner = scope
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inner = (*scope, node.name)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)  # a docstring
            if isinstance(child, ast.AST) and not is_text:
                yield from _visit(child, inner)


def _names_cuda(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=text) | ast.Attribute(attr=text) | ast.alias(name=text):
            return "cuda" in text.lower()
        case ast.Constant(value=str() as text):
            return "cuda" in text.lower()
    return False
