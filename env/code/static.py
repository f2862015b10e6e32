"""What the text of a solution says of itself, without running it. Runs in a confined worker."""

import ast
import builtins
import symtable
from typing import Any

DYNAMIC = {"exec", "globals", "__import__"}
"""Who uses these may define names that no text shows."""


def look(argument: dict[str, str]) -> dict[str, Any]:
    """Returns where a solution that compiles uses names that nothing defines, and where its function returns.

    `argument` holds the texts `given` and `solution`, and the `entry_point`. The result has `undefined`:
    pairs of a line and a name; `returns`: lines of the function's own return statements; `defined`: its line.
    It is empty for a text that the parser refuses though the compiler took it, such as a very deep one.
    """
    solution, name = argument["solution"], argument["entry_point"]
    try:
        tree, table = ast.parse(solution), symtable.symtable(solution, "<solution>", "exec")
        known = {*dir(builtins), *_bound(ast.parse(argument["given"])), *_bound(tree)}
        free = _free_names(table)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    own = [node for function in functions[-1:] for node in _own(function)]
    undefined = set[str]() if "*" in known or free & DYNAMIC else free - known
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in undefined]
    return {
        "undefined": sorted([node.lineno, node.id] for node in uses if isinstance(node.ctx, ast.Load)),
        "returns": sorted(node.lineno for node in own if isinstance(node, ast.Return)),
        "defined": functions[-1].lineno if functions else None,
    }


def _own(function: ast.FunctionDef) -> list[ast.AST]:
    """Returns the nodes of a function's body without those of functions in it."""
    found, left = list[ast.AST](), list[ast.AST](function.body)
    while left:
        node = left.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            left += ast.iter_child_nodes(node)
    return found


def _free_names(table: symtable.SymbolTable) -> set[str]:
    """Returns the names that some scope takes from the module or from builtins."""
    names = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module")
    }
    return names.union(*(_free_names(inner) for inner in table.get_children()))


def _bound(tree: ast.Module) -> set[str]:
    """Returns every name that a module binds anywhere, and `*` if it imports all names of another."""
    names = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.MatchMapping(rest=str(name)):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    return names
