"""Judges a solution: it runs confined, and what it returns is compared where it cannot reach.

The solution's process is asked for one call after the other, the public ones first. It never holds an
expected value, nor, while it answers the public tests, any argument of a hidden one: so its answers to those
may be quoted.
"""

import builtins
import marshal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from env.code.answer import LINE_BREAK
from env.code.compare import agree
from env.code.problems import Example, Problem
from env.code.values import decode, encode
from env.sandbox import Box, Limits, Outcome, Sandbox

LIMITS = Limits(seconds=2.0, memory_mb=512, output_bytes=2**20)
"""Of each call of a solution, and of one play of a test program (start values)."""
MAX_SECONDS = 20.0
"""Of all calls of a solution and plays of its tests, so that many slow ones do not hold up the others."""
MAX_ROUNDS = 100
"""How often a test program is played until it asks for no new call; a solution can prolong it."""
MAX_WORDS = 200

FailureKind = Literal["syntax", "exception", "unreadable", "timeout", "memory", "output", "crashed"]
KINDS = get_args(FailureKind)
EXCEPTIONS = {
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
"""Names that an exception may have when it is told; others could tell anything."""


def _box_program(name: str) -> str:
    """Returns what runs in a box: a file and `values.py` as one text, since nothing can be imported there.

    It is compiled here, as that takes a box milliseconds.
    """
    values, main = (Path(__file__).with_name(file).read_text("utf-8") for file in ("values.py", name))
    own = main.replace("from env.code.values import decode, encode\n", "")
    code = compile(f"{values}\n{own}\nmain(argument, deliver, receive)\n", f"<{name}>", "exec")
    return f"import marshal\nexec(marshal.loads({marshal.dumps(code)!r}))"


RUNNER, PLAYER = _box_program("runner.py"), _box_program("asserts.py")


class UnjudgedError(Exception):
    """A solution could not be judged, not by its own fault; holds the kind of failure, one word."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call returned nothing usable."""

    kind: FailureKind
    name: str = ""  # of a built-in exception or type
    words: str = ""  # the exception's own: told only of what ran before any hidden test
    line: int | None = None  # of the solution, from 1


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test."""

    passed: bool
    value: Any = None  # what the solution returned
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of all tests of a problem; both lists are empty if the solution did not get to them."""

    public: tuple[Result, ...] = ()
    hidden: tuple[Result, ...] = ()  # of assertions too, without values
    stopped: Failure | None = None  # why it did not get to its tests

    @property
    def share(self) -> float:
        """Share of tests that passed, in [0, 1]."""
        results = self.public + self.hidden
        return sum(result.passed for result in results) / len(results) if results else 0.0

    @property
    def success(self) -> bool:
        """Whether every test passed."""
        return self.share == 1.0


def judge(problem: Problem, solution: str, sandbox: Sandbox) -> Judgement:
    """Returns what became of a solution; raises UnjudgedError if that cannot be said."""
    with sandbox.open(RUNNER, texts_of(problem, solution=solution), LIMITS) as box:
        asked = _Asked(box, len(LINE_BREAK.split(solution)))
        stopped = asked.answer(None)
        if isinstance(stopped, Failure):
            return Judgement(stopped=stopped)
        public = tuple(asked.result(example) for example in problem.public)
        hidden = [asked.result(example) for example in problem.hidden]
        if problem.program:
            hidden += _assertions(problem, asked, sandbox)
        return Judgement(public, tuple(hidden))


class _Asked:
    """A solution in its box; what it answers is untrusted JSON until it is read here."""

    def __init__(self, box: Box, num_lines: int) -> None:
        self.seconds, self._box, self._num_lines = 0.0, box, num_lines

    def answer(self, call: Any) -> "Failure | tuple[Any]":
        """Returns what a call returned, in a tuple of one, or why it did not."""
        if self.seconds > MAX_SECONDS:
            return Failure("timeout")
        outcome = self._box.ask(call)
        self.seconds += outcome.seconds
        if outcome.status == "unavailable":
            raise UnjudgedError("sandbox_unavailable")
        if outcome.status != "ok":
            return Failure("crashed" if outcome.status == "raised" else outcome.status)
        said: Any = outcome.value
        match said:
            case {"value": value}:
                try:
                    return (decode(value),)
                except ValueError:
                    return Failure("unreadable")
            case {"error": kind, "name": name, "words": str(words), "line": line} if kind in KINDS:
                is_line = type(line) is int and 1 <= line <= self._num_lines
                known = name if isinstance(name, str) and name in EXCEPTIONS else ""
                return Failure(kind, known, words[:MAX_WORDS], line if is_line else None)
        return Failure("unreadable")

    def result(self, example: Example) -> Result:
        """Returns what became of a test."""
        answer = self.answer([example.arguments, encode({})])
        if isinstance(answer, Failure):
            return Result(False, failure=answer)
        return Result(agree(answer[0], decode(example.expected), example.comparison), answer[0])


def _assertions(problem: Problem, asked: _Asked, sandbox: Sandbox) -> list[Result]:
    """Returns what became of each assertion of a problem's test program, as far as it ran.

    A program that ends while nothing is answered, but not with what the solution answers, fails it.
    """
    answers: list[Any] = []
    failures: list[Failure] = []
    used, num_tests, stopped = -1, 1, Failure("timeout")
    with sandbox.open(PLAYER, texts_of(problem, program=problem.program), LIMITS) as player:
        for _ in range(MAX_ROUNDS):
            outcome = player.ask(answers)
            asked.seconds += outcome.seconds
            if answers and outcome.status in ("timeout", "memory", "output"):
                stopped = Failure(outcome.status)
                break
            played = told_by(outcome)
            if not played["wanted"]:
                return _results(played, failures)
            if played["used"] <= used:  # the call that was answered last is not made again
                raise UnjudgedError("tests_not_repeatable")
            used, num_tests = played["used"], len(played["passed"]) + played["lost"]
            del answers[used:]
            for call in played["wanted"]:
                answer = asked.answer(call)
                if isinstance(answer, Failure):
                    failures.append(answer)
                    answers.append([call, {}])
                else:
                    answers.append([call, {"value": encode(answer[0])}])
    return [Result(False, failure=stopped)] * max(1, num_tests)


def _results(played: dict[str, Any], failures: list[Failure]) -> list[Result]:
    """Returns what became of each assertion of a test program that asks for nothing new."""
    why = iter(failures)
    results = [Result(held, failure=None if held else next(why, None)) for held in played["passed"]]
    # What held may have held of nothing, and what was not met cannot pass: then one test more fails.
    lost = played["lost"] or int(not results or (played["failed"] and all(played["passed"])))
    return results + [Result(False, failure=next(why, None))] * lost


def texts_of(problem: Problem, **more: str) -> dict[str, Any]:
    """Returns what each part of a judgement is told of a problem, and more."""
    return {"given": problem.given, "entry_point": problem.entry_point, **more}


def told_by(outcome: Outcome) -> Any:
    """Returns what one of our own functions said; raises UnjudgedError if it did not."""
    if outcome.status != "ok":
        raise UnjudgedError(f"verifier_{outcome.status}")
    return outcome.value


def failures_of(results: Sequence[Result]) -> list[Failure]:
    """Returns the different failures among results, in order."""
    return list(dict.fromkeys(result.failure for result in results if result.failure is not None))
