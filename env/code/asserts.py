"""Tests that are a program of assertions, such as HumanEval's and MBPP's, played without the solution.

The program calls a stand-in. That answers with what the solution returned in its own box, as plain data, or
notes the call and answers with nothing usable; so a program is played until it asks for nothing new. The box
runs this text after that of `values.py`: one for each solution, never the solution's own.
"""

import ast
import random
from collections.abc import Callable
from typing import Any

from env.code.values import decode, encode


class Nothing:
    """What a call is answered with that failed, or was not made yet; no test can be passed with it."""

    def _refuse(self, *_: object) -> Any:
        raise TypeError("no result")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __str__ = __repr__ = __hash__ = _refuse


class _StandIn:
    """The solution's function, as a test program sees it."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.used = 0  # answers that fitted the calls
        self.wanted: list[Any] = []  # calls without an answer, in order
        self.has_failed = False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        call = [encode(list(arguments)), encode(named)]
        if self.wanted or self.used == len(self.answers) or self.answers[self.used][0] != call:
            self.wanted.append(call)
            return Nothing()
        answer = self.answers[self.used][1]
        self.used += 1
        if "value" not in answer:
            self.has_failed = True
            return Nothing()
        return decode(answer["value"])


class _Judged(ast.NodeTransformer):
    """Has every assertion counted instead of ending the program; one of a constant tests nothing."""

    number = 0  # of assertions in the text

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return ast.copy_location(ast.Pass(), node)
        self.number += 1
        no_arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        call = ast.Call(ast.Name("__judge__", ast.Load()), [ast.Lambda(no_arguments, node.test)], [])
        return ast.copy_location(ast.Expr(call), node)


def main(
    argument: dict[str, Any], deliver: Callable[[dict[str, Any]], None], receive: Callable[[], Any]
) -> None:
    """Plays the program with the answers that it is told, again and again, until nobody asks any more."""
    while True:
        try:
            answers = receive()
        except EOFError:
            return
        deliver(play(argument, answers))


def play(argument: dict[str, Any], answers: list[Any]) -> dict[str, Any]:
    """Returns what a test program makes of the answers so far.

    Args:
        argument: texts `given` (names that the tests may use) and `program`, and the `entry_point`.
        answers: pairs of a call and its answer, in the order in which the program calls.

    Returns:
        `passed`: for each assertion, in order, whether it held; `used`: how many answers were asked for;
        `wanted`: calls that come after these; `lost`: how many assertions of the text were not met, at least
        one if the program did not run to its end; `failed`: whether a call had no result, so that what held
        may have held of nothing.
    """
    stand_in, passed = _StandIn(answers), list[bool]()

    def judge(condition: Callable[[], Any]) -> None:
        try:
            passed.append(bool(condition()))
        except Exception:  # whatever wrong data do to a test
            passed.append(False)

    random.seed(0)
    name = argument["entry_point"]
    names: dict[str, Any] = {"__name__": "tests"}
    exec(compile(argument["given"], "<given>", "exec", dont_inherit=True), names)
    names |= {name: stand_in, "__judge__": judge}
    judged, lost = _Judged(), 0
    try:
        tree = ast.fix_missing_locations(judged.visit(ast.parse(argument["program"])))
        exec(compile(tree, "<tests>", "exec", dont_inherit=True), names)
        if "check" in names and name != "check":
            names["check"](stand_in)
    except Exception:  # between assertions, so what comes after is not met
        lost = max(1, judged.number - len(passed))
    return {
        "passed": passed,
        "used": stand_in.used,
        "wanted": stand_in.wanted,
        "lost": lost,
        "failed": stand_in.has_failed,
    }
