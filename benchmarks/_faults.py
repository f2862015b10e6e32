"""One-place faults of a module: slips of the hand in an operator, bound, sign or constant."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True, slots=True)
class Fault:
    """The text of a file from character `start` to `stop` becomes `new`."""

    path: str
    line: int
    start: int
    stop: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.old.split())} -> {' '.join(self.new.split())}"

    def put_into(self, root: Path) -> None:
        """Writes the fault into the copy of the tree at `root`."""
        path = root / self.path
        path.write_text(self.put_in(path.read_text(encoding="utf-8")), encoding="utf-8")

    def put_in(self, source: str) -> str:
        """Returns the text of the file with the fault."""
        return source[: self.start] + self.new + source[self.stop :]


def faults_of(root: Path, path: Path) -> Iterator[Fault]:
    """Yields every fault of a Python file."""
    yield from faults_in(path.read_text(encoding="utf-8"), str(path.relative_to(root)))


def faults_in(source: str, name: str) -> Iterator[Fault]:
    """Yields every fault of a module; types, docstrings, assertions and texts of errors stay whole."""
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node in executed(ast.parse(source)):
        new = replacement(node, source)
        if new is None:
            continue
        start = lines[node.lineno - 1] + node.col_offset  # in bytes, but sources are ASCII
        stop = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        yield Fault(name, node.lineno, start, stop, source[start:stop], new)


def executed(node: ast.AST) -> Iterator[ast.expr]:
    """Yields the expressions below a node that decide what is computed."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr):
                yield child
            if isinstance(child, ast.AST):
                yield from executed(child)


def replacement(node: ast.expr, source: str) -> str | None:
    """Returns the faulty text of an expression; None for one that has no fault here."""

    def text(part: ast.AST) -> str:
        return ast.get_source_segment(source, part) or ""

    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            return f"({text(node.left)}) {COMPARISONS[type(op)]} ({text(node.comparators[0])})"
        case ast.BinOp() if type(node.op) in OPERATORS and not is_text(node):
            return f"({text(node.left)}) {OPERATORS[type(node.op)]} ({text(node.right)})"
        case ast.BoolOp():
            word = " or " if isinstance(node.op, ast.And) else " and "
            return "(" + word.join(f"({text(value)})" for value in node.values) + ")"
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return f"({text(node.operand)})"
        case ast.Constant(value=bool() as truth):
            return str(not truth)
        case ast.Constant(value=int() | float() as number):
            return repr(number + 1)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in CALLS:
            return text(node).removesuffix(name) + CALLS[name]
    return None


def is_text(node: ast.BinOp) -> bool:
    """Returns whether an operator joins texts or lists, where another one would be a type error."""
    return any(
        isinstance(part, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in (node.left, node.right)
    )
