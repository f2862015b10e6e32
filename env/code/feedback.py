"""What happened to a solution as events, and what a failed one is told: never a word of a hidden test."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from env.chat.neutral import one_line
from env.code.answer import Solution
from env.code.judge import Failure, FailureKind, Judgement, Result
from env.code.problems import Example, Problem
from env.code.values import decode
from pipeline.types import Event, Feedback

Verbosity = Literal["binary", "observed", "corrective"]
MAX_CHARACTERS = 600
MAX_SENTENCE_CHARACTERS = 400
MAX_VALUE_CHARACTERS = 120
PUBLIC, HIDDEN = "public", "hidden"
"""Targets of events: the tests that the prompt shows, and the others."""
NO_ANSWER, SOLVED, WRONG = "no_answer", "solved", "wrong_result"
_HOW: dict[FailureKind, str] = {
    "syntax": "does not compile",
    "exception": "raises an exception",
    "unreadable": "returns what is no plain data",
    "timeout": "takes too long",
    "memory": "takes too much memory",
    "output": "prints too much",
    "crashed": "ends the process",
}


def events_of(problem: Problem, solution: Solution | None, judgement: Judgement) -> list[Event]:
    """Returns what happened: an event for each failed public test, and one if hidden ones fail.

    The one says of which kind the first failure is, and no more. A solution may choose line, exception
    and its words by the arguments of a hidden test, so these would tell what the arguments are.
    """
    if solution is None:
        return [Event(NO_ANSWER, 0, detail="the message holds no block of code")]
    if judgement.stopped is not None:
        return [Event(judgement.stopped.kind, 0, detail=f"the code {_how(solution, judgement.stopped)}")]
    if judgement.success:
        return [Event(SOLVED, 0)]
    events = [
        _failed(problem.entry_point, solution, example, result)
        for example, result in zip(problem.public, judgement.public, strict=True)
        if not result.passed
    ]
    failed = next((result for result in judgement.hidden if not result.passed), None)
    if failed is not None:
        code, how = WRONG, "returns a wrong result"
        if failed.failure is not None:
            code, how = failed.failure.kind, _HOW[failed.failure.kind]
        events.append(Event(code, 0, HIDDEN, detail=f"it {how}"))
    return events


def rule_feedback(events: Sequence[Event], verbosity: Verbosity) -> Feedback:
    """Returns what a failed solution teaches.

    `binary` says that it failed and on what, `observed` also how, of the first public test that fails, and
    `corrective` of all of them. None of them states what a public test, or running it, would not show. Raises
    ValueError for an unknown verbosity.
    """
    if verbosity not in get_args(Verbosity):
        raise ValueError(f"verbosity {verbosity!r}; known: {', '.join(get_args(Verbosity))}")
    public = [event for event in events if event.target != HIDDEN]
    hidden = [event for event in events if event.target == HIDDEN]
    if not any(event.target for event in events):  # no test was run
        text = events[0].detail if verbosity != "binary" else events[0].detail.partition(":")[0]
        return Feedback(_cut(["Not solved.", _sentence(text)]), f"rules/{verbosity}")
    what = "It fails a public test." if public else "It fails only tests that are not shown."
    sentences = ["Not solved.", what]
    if verbosity != "binary":
        shown = public if verbosity == "corrective" else public[:1]
        sentences += [_sentence(event.detail) for event in shown or hidden]
    return Feedback(_cut(sentences), f"rules/{verbosity}")


def call_text(name: str, example: Example) -> str:
    """Returns a test's call as Python."""
    return f"{name}({', '.join(value_text(value) for value in decode(example.arguments))})"


def value_text(value: Any) -> str:
    """Returns a value as Python, cut to a length."""
    try:
        text = repr(value)
    except ValueError:  # an integer with too many digits
        text = "an enormous number"
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."


def _failed(name: str, solution: Solution, example: Example, result: Result) -> Event:
    call, expected = call_text(name, example), value_text(decode(example.expected))
    if result.failure is None:
        detail = f"`{call}` returns {value_text(result.value)}, expected {expected}"
        return Event(WRONG, 0, PUBLIC, detail=detail)
    how = _how(solution, result.failure)
    return Event(result.failure.kind, 0, PUBLIC, detail=f"`{call}` {how}, expected {expected}")


def _how(solution: Solution, failure: Failure) -> str:
    """Returns how a solution failed before it met any hidden test."""
    named = failure.kind == "exception" and failure.name
    how = f"raises {failure.name}" if named else _HOW[failure.kind]
    words = f": {failure.words}" if failure.words else ""
    line = failure.line
    return f"{how}{words}" + ("" if line is None else f" in line {line}, `{solution.line(line)[:100]}`")


def _sentence(detail: str) -> str:
    text = one_line(detail, MAX_SENTENCE_CHARACTERS)
    return f"{text[:1].upper()}{text[1:]}."


def _cut(sentences: Sequence[str]) -> str:
    """Returns as many whole sentences as fit."""
    text = ""
    for sentence in sentences:
        if len(text) + len(sentence) + 1 > MAX_CHARACTERS:
            break
        text = f"{text} {sentence}".strip()
    return text
