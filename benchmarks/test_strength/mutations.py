"""Small changes to a source file, each of which a test should notice.

A change is known by what it changes, not by where that is: the function's name, its statement, and the change. So the
same seed chooses the same changes after a function has moved to another file.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Not: ("not", ""),
}
"""Operator -> how it is spelled, and what takes its place."""


@dataclass(frozen=True)
class Mutation:
    """One change: the text from ``begin`` to ``end`` (offsets in the file) becomes ``text``."""

    file: Path
    """Relative to the tree."""
    line: int
    begin: int
    end: int
    text: str
    key: str
    """Hash of what is changed, and of the seed."""
    what: str
    """For people: function, and the change."""

    def applied(self, source: str) -> str:
        """Return the file with the change."""
        return source[: self.begin] + self.text + source[self.end :]


def mutations_of(tree: Path, file: Path, seed: int) -> Iterator[Mutation]:
    """Yield every change of a file's functions. Strings, annotations and what is outside of functions stay."""
    source = (tree / file).read_text()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    seen: Counter[str] = Counter()

    def offset(line: int, column: int) -> int:
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())  # columns of ast count bytes

    for name, statement in _statements(ast.parse(source), ()):
        for node in _expressions(statement):
            for begin_at, end_at, old, text in _changes(node):
                begin, end = offset(*begin_at), offset(*end_at)
                if old:  # there may be parentheses around it
                    begin = source.index(old, begin, end)
                    end = begin + len(old)
                what = f"{name}: {source[begin:end]!r} -> {text!r}"
                place = f"{ast.dump(statement)}{what}"
                seen[place] += 1
                key = hashlib.sha256(f"{seed}|{place}|{seen[place]}".encode()).hexdigest()
                yield Mutation(file, node.lineno, begin, end, text, key, what)  # type: ignore[attr-defined]


def _statements(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements of functions, each with the name of its function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _statements(child, (*scope, child.name))
            continue
        if isinstance(child, ast.stmt) and scope and not isinstance(node, ast.ClassDef):
            yield ".".join(scope), child
        yield from _statements(child, scope)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a statement, without those of the statements in it."""
    if isinstance(statement, ast.Return):
        yield statement
    if isinstance(statement, ast.AnnAssign):
        parts: list[ast.AST] = [statement.value] if statement.value is not None else []
    else:
        parts = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)]
    while parts:
        part = parts.pop()
        yield part
        if not isinstance(part, ast.JoinedStr | ast.Lambda):
            parts += [child for child in ast.iter_child_nodes(part) if isinstance(child, ast.expr)]


def _changes(node: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int], str, str]]:
    """Yield for each change of a node between which places it is, what goes ("": all between them), and what comes."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            yield _end(left), _begin(right), *_OPERATORS[type(op)]
        case ast.BoolOp(op=op, values=[first, second, *_]):
            yield _end(first), _begin(second), *_OPERATORS[type(op)]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS and not _is_text(left, right):
            yield _end(left), _begin(right), *_OPERATORS[type(op)]
        case ast.UnaryOp(op=ast.Not() as op, operand=operand):
            yield _begin(node), _begin(operand), *_OPERATORS[type(op)]
        case ast.Constant(value=bool() as value):
            yield _begin(node), _end(node), "", str(not value)
        case ast.Constant(value=int() | float() as value):
            yield _begin(node), _end(node), "", str(value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield _begin(value), _end(value), "", "None"


def _is_text(left: ast.expr, right: ast.expr) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (left, right)
    )


def _begin(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _end(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
