"""Verdicts on the lines of a solution, from what became of its tests and from what its text says."""

from typing import Any

from env.code.answer import Solution
from env.code.judge import Failure, Judgement, failures_of
from env.code.problems import Problem
from env.code.values import decode
from pipeline.types import StepVerdict

LOCATED = ("syntax", "exception")
"""Failures that a line is to blame for; where memory ran out is only where the program happened to be."""
_NO_DATA = "what is no plain data"


def step_verdicts(
    problem: Problem, solution: Solution, judgement: Judgement, looked: dict[str, Any]
) -> tuple[StepVerdict, ...]:
    """Returns verdicts on lines, in order; each covers its line of the message.

    `ok`: every line that says something, of a solution that passes all tests. `wrong`: a line that does not
    compile, raises, uses a name that nothing defines, or returns a type that no test expects. A value that is
    not the expected one can come from any line, so it leaves the lines that return values `unknown`. `looked`
    is what `static.look` says of a solution that failed, empty where there is nothing to say.

    They look at the whole solution: a later line can make an earlier one raise. They quote no test.
    """
    spans = solution.line_spans()
    said: dict[int, tuple[str, str, str]] = {}  # line -> status, code, words; the first word on a line stays
    if judgement.success:
        for number in range(1, len(spans) + 1):
            if (text := solution.line(number)) and not text.startswith("#"):
                said[number] = ("ok", "", "part of a solution that passes every test")
    else:
        stopped = [judgement.stopped] if judgement.stopped else []
        for failure in [*stopped, *failures_of(judgement.public + judgement.hidden)]:
            if failure.line is not None:
                status = "wrong" if failure.kind in LOCATED else "unknown"
                said.setdefault(failure.line, (status, failure.kind, f"line {failure.line} {_what(failure)}"))
        for line, name in looked.get("undefined", ()):
            words = f"line {line} uses {name}, which nothing defines"
            said.setdefault(line, ("wrong", "undefined_name", words))
        if not judgement.stopped:
            said = {**_on_returns(problem, judgement, looked), **said}
    return tuple(
        StepVerdict(0, status, code if status == "wrong" else "", words, *spans[number - 1])  # type: ignore[arg-type]
        for number, (status, code, words) in sorted(said.items())
    )


def _what(failure: Failure) -> str:
    """Returns a failure without its own words, which may quote what a hidden test calls with."""
    if failure.kind == "exception":
        return f"raises {failure.name or 'an exception'}"
    return "does not compile" if failure.kind == "syntax" else "takes too much"


def _on_returns(
    problem: Problem, judgement: Judgement, looked: dict[str, Any]
) -> dict[int, tuple[str, str, str]]:
    """Returns words on the lines that return what the tests refuse."""
    returns = looked.get("returns", [])
    lines = returns or [line for line in [looked.get("defined")] if line is not None]
    if types := wrong_type(problem, judgement):
        got, expected = types
        # None may come from the function's end rather than from a return.
        is_located = len(lines) == 1 and not (returns and got == type(None).__name__)
        status = "wrong" if is_located else "unknown"
        return dict.fromkeys(lines, (status, "type", f"the function returns {got}, not {expected}"))
    results = judgement.public + judgement.hidden
    failed = sum(not result.passed for result in results)
    return dict.fromkeys(returns, ("unknown", "", f"{failed} of {len(results)} tests fail"))


def wrong_type(problem: Problem, judgement: Judgement) -> tuple[str, str] | None:
    """Returns the types that come back and that public tests expect, if none gets the type it expects."""
    pairs = [
        (_NO_DATA if result.failure else type(result.value).__name__, type(decode(example.expected)).__name__)
        for example, result in zip(problem.public, judgement.public, strict=True)
        if result.failure is None or result.failure.kind == "unreadable"
    ]
    if not pairs or any(got == expected or {got, expected} == {"int", "float"} for got, expected in pairs):
        return None
    got, expected = (" or ".join(sorted(set(names))) for names in zip(*pairs, strict=True))
    return got, expected
