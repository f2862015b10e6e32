"""What runs in the box beside a solution: it makes the calls that it is asked for and delivers the results.

The box runs this text after that of `values.py`. It shares a process with the solution, which can change any
of it; so nothing here is secret or trusted. It is told one call after the other, and never what one should
return.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from env.code.values import decode, encode

SOLUTION = "<solution>"


def main(
    argument: dict[str, Any], deliver: Callable[[dict[str, Any]], None], receive: Callable[[], Any]
) -> None:
    """Defines the solution, delivers what came of it, then answers calls until nobody asks any more.

    `argument` holds the texts `given` (runs first) and `solution`, and the `entry_point`. A call is a pair of
    encoded arguments and named arguments. An answer is `_attempt`'s.
    """
    names: dict[str, Any] = {"__name__": "solution"}
    receive()
    deliver(_attempt(lambda: _define(argument, names)))
    while True:
        try:
            arguments, named = receive()
        except EOFError:
            return
        deliver(_attempt(partial(_call, names[argument["entry_point"]], arguments, named)))


class CompileError(Exception):
    """A solution that is no Python; its cause says why."""


class UnreadableError(Exception):
    """A call returned what is no plain data; holds the name of its type."""


def _define(argument: dict[str, Any], names: dict[str, Any]) -> None:
    try:
        code = compile(argument["solution"], SOLUTION, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError) as error:
        raise CompileError from error
    exec(compile(argument["given"], "<given>", "exec", dont_inherit=True), names)
    exec(code, names)
    if not callable(names.get(argument["entry_point"])):
        raise NameError(f"name {argument['entry_point']!r} is not defined")


def _call(function: Callable[..., Any], arguments: Any, named: Any) -> Any:
    return function(*decode(arguments), **decode(named))


def _attempt(act: Callable[[], Any]) -> dict[str, Any]:
    """Returns the encoded `value` of an act, or the kind of `error` with its exception and its line."""
    try:
        result = act()
        try:
            return {"value": encode(result)}
        except ValueError:
            raise UnreadableError(type(result).__name__) from None
    except CompileError as error:
        cause = error.__cause__
        words = getattr(cause, "msg", None) or str(cause)
        return _failure("syntax", cause, words, getattr(cause, "lineno", None))
    except UnreadableError as error:
        return _failure("unreadable", error, str(error), None)
    except MemoryError as error:
        return _failure("memory", error, "", _line(error))
    except BaseException as error:
        try:
            words = str(error).encode("utf-8", "replace").decode()
        except BaseException:
            words = ""
        return _failure("exception", error, words, _line(error))


def _failure(kind: str, error: BaseException | None, words: str, line: int | None) -> dict[str, Any]:
    return {"error": kind, "name": type(error).__name__, "words": words[:200], "line": line}


def _line(error: BaseException) -> int | None:
    """Returns the line of the solution in whose call the exception was raised, the deepest one."""
    line, place = None, error.__traceback__
    while place is not None:
        if place.tb_frame.f_code.co_filename == SOLUTION:
            line = place.tb_lineno
        place = place.tb_next
    return line
