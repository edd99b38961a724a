"""Every name that the sources define, read from their syntax: what documents may put in backticks."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

from helpers.documents import ROOT

SOURCE_ROOTS = (ROOT / "client", ROOT / "gateway")
_TREES = (*((root, root) for root in SOURCE_ROOTS), (ROOT, ROOT / "netem"))
"""Where dotted names begin, and what is read."""


@dataclass
class SourceNames:
    """The names of both packages, and of the laboratory."""

    modules: dict[str, set[str]] = field(default_factory=dict)
    """What each module defines at its top, by its dotted name."""
    members: dict[str, set[str]] = field(default_factory=dict)
    """What classes have, by their name: methods, fields, slots, and what is assigned to self; bases not included."""
    bases: dict[str, set[str]] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    """Functions, methods and parameters, whoever they belong to."""

    def has_member(self, owner: str, name: str) -> bool:
        """Whether a class, or one that it is made from, has this attribute."""
        return name in self.members.get(owner, ()) or any(
            self.has_member(base, name) for base in self.bases.get(owner, ())
        )

    def has_path(self, dotted: str) -> bool:
        """Whether this is a package, a module, or something at the top of one."""
        module, _, name = dotted.rpartition(".")
        return dotted in self.modules or name in self.modules.get(module, ())


@functools.cache
def source_names() -> SourceNames:
    names = SourceNames()
    for root, folder in _TREES:
        for path in folder.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            tree = ast.parse(path.read_text(), str(path))
            names.modules[module] = set(_defined(tree.body))
            _collect(names, tree)
    return names


def _collect(names: SourceNames, tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            members = names.members.setdefault(node.name, set())
            members.update(_defined(node.body), _assigned_to_self(node))
            names.bases.setdefault(node.name, set()).update(
                base.id for base in node.bases if isinstance(base, ast.Name)
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            names.functions.update((node.name, *(each.arg for each in every)))


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.Assign():
                for target in node.targets:
                    yield from _names_in(target)
            case ast.AnnAssign():
                yield from _names_in(node.target)


def _assigned_to_self(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        match each:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def _names_in(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id
