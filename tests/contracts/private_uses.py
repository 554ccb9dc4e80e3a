"""Finds the private names of torch that a source file uses, by its syntax tree."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PRIVATE = re.compile(r"_[a-zA-Z]\w*")


@dataclass(frozen=True, order=True)
class Use:
    """One use of a name that is not ours and begins with an underscore."""

    file: str
    line: int
    name: str
    """A path such as ``torch._C.Tag`` where the syntax shows the module; else the bare name, ``_version``."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name}"


def uses(path: Path, text: str, own: frozenset[str]) -> Iterator[Use]:
    """Yield the private names in the source ``text``, other than those of ``own`` classes.

    A bare name is that of an attribute, or a string: ``getattr(bindings, "_dump")`` is a use too.
    """
    tree = ast.parse(text)
    modules = dict(_imported(tree))
    for line, name in _imported_names(tree):
        if _is_private_of_torch(name):
            yield Use(str(path), line, name)
    for node in _outermost(tree):
        match node:
            case ast.Attribute():
                chain = _chain(node, modules)
                if chain.startswith("torch."):
                    if _is_private_of_torch(chain):
                        yield Use(str(path), node.lineno, chain)
                elif chain.startswith("."):
                    for part in chain.split("."):
                        if _PRIVATE.fullmatch(part) and part not in own:
                            yield Use(str(path), node.lineno, part)
            case ast.Constant(value=str(word)) if _PRIVATE.fullmatch(word) and word not in own:
                yield Use(str(path), node.lineno, word)


def own_names(texts: Iterable[str]) -> frozenset[str]:
    """Return the private classes of our sources, and the private attributes of our classes.

    A protocol defines nothing: it only describes the attributes of others.
    """
    found = set()
    for text in texts:
        tree = ast.parse(text)
        for node in tree.body:
            match node:
                case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]) if name[1:2].isupper():
                    found.add(name)
        for kind in (part for part in ast.walk(tree) if isinstance(part, ast.ClassDef)):
            if any(ast.unparse(base).startswith("Protocol") for base in kind.bases):
                continue
            for part in ast.walk(kind):
                match part:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                        found.add(name)
                    case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                        found.add(name)
                    case ast.Name(id=name, ctx=ast.Store()):
                        found.add(name)
    return frozenset(name for name in found if _PRIVATE.fullmatch(name))


def _is_private_of_torch(name: str) -> bool:
    first, *rest = name.split(".")
    return first == "torch" and any(_PRIVATE.fullmatch(part) for part in rest)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the local name of each imported thing, and its path."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield (
                        alias.asname or alias.name.split(".")[0],
                        alias.name if alias.asname else alias.name.split(".")[0],
                    )
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    yield alias.asname or alias.name, f"{module}.{alias.name}"


def _imported_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the whole path of each imported thing."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)


def _outermost(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions of a tree. Of ``a.b.c`` only the whole, and none of docstrings."""
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if is_docstring:
            continue
        yield child
        if isinstance(child, ast.Attribute):
            inner = child.value
            while isinstance(inner, ast.Attribute):
                inner = inner.value
            yield inner
            yield from _outermost(inner)
        else:
            yield from _outermost(child)


def _chain(node: ast.expr, modules: dict[str, str]) -> str:
    """Return the path of ``a.b.c``; "" for our own objects. It begins with a dot if ``a`` is no imported thing."""
    match node:
        case ast.Attribute(value=value, attr=name):
            inner = _chain(value, modules)
            return f"{inner}.{name}" if inner or not _is_own(value) else ""
        case ast.Name(id="self" | "cls"):
            return ""
        case ast.Name(id=name):
            return modules.get(name, "")
        case ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Constant(value=str(name))):
            return name
    return ""


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
