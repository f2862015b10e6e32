"""Final answers: hand-made pairs of gold and answer, judged by env/math and by math-verify alone.

    python -m benchmarks.math_answers

`benchmarks/math_answers.tsv` has the pairs and says of each whether it is right. An answer stands in a box,
but for the kind `message`, which is a whole message. Ours goes the environment's way, sandbox included;
math-verify alone reads the same message and compares it with a boxed gold, as its page shows.
"""

import csv
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import math_verify
from pydantic import JsonValue

from benchmarks._results import Criteria, Row, at_least, measured
from benchmarks._run import ROOT, Asked, Benchmark, main
from env.math.answers import extract
from env.math.environment import InfraError, graded
from env.sandbox import Limits, shared_sandbox

PAIRS = ROOT / "benchmarks" / "math_answers.tsv"
ALONE_LIMITS = Limits(seconds=15.0, memory_mb=2048)
"""Of math-verify alone: twice its own five seconds, and what loading takes."""
OURS, ALONE = "env/math", "math-verify alone"


class Pair(NamedTuple):
    """A gold answer, a message, and whether the message gives it."""

    kind: str
    is_right: bool
    gold: str
    message: str


def pairs() -> list[Pair]:
    """Returns the committed pairs."""
    with open(PAIRS, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        Pair(
            row["kind"],
            row["right"] == "1",
            row["gold"],
            row["text"] if row["kind"] == "message" else rf"\boxed{{{row['text']}}}",
        )
        for row in rows
    ]


def ours(pair: Pair) -> bool | None:
    """Returns the environment's judgement; None if it has none."""
    try:
        return graded(pair.gold, extract(pair.message)).is_right
    except InfraError:
        return None


def alone(pair: Pair) -> bool | None:
    """Returns math-verify's judgement with its own timeouts; None if it had to be killed all the same."""
    argument: JsonValue = {"gold": pair.gold, "message": pair.message}
    outcome = shared_sandbox().call("benchmarks.math_answers:verified", argument, ALONE_LIMITS)
    return bool(outcome.value) if outcome.status == "ok" else None


def verified(argument: dict[str, str]) -> bool:
    """Returns what math-verify says of a message; what it cannot read or compare is wrong to it."""
    gold = math_verify.parse(rf"\boxed{{{argument['gold']}}}")
    return bool(math_verify.verify(gold, math_verify.parse(argument["message"])))


def rows_of(name: str, found: Iterable[tuple[Pair, bool | None]]) -> list[Row]:
    """Returns the numbers of wrong judgements, and of pairs without one, in all and by kind."""
    counts: dict[str, Counter[str]] = {}
    for pair, judged in found:
        error = "not judged" if judged is None else "false positives" if judged else "false negatives"
        for variant in (name, f"{name} / {pair.kind}"):
            own = counts.setdefault(variant, Counter())
            own["pairs"] += 1
            own[error] += judged is not pair.is_right
    metrics = ("pairs", "false positives", "false negatives", "not judged")
    return [
        row
        for variant, own in counts.items()
        for row in measured(variant, {metric: own[metric] for metric in metrics})
    ]


def measure(asked: Asked) -> list[Row]:
    """Returns what both got wrong."""
    judges: dict[str, Callable[[Pair], bool | None]] = {OURS: ours, ALONE: alone}
    return [
        row
        for name, judge in judges.items()
        for row in rows_of(name, [(pair, judge(pair)) for pair in pairs()])
    ]


CRITERIA: Criteria = {
    "at least 300 pairs": at_least(300, OURS, "pairs"),
    **{
        f"no {metric}": lambda t, metric=metric: t(OURS, metric) == 0  # type: ignore[misc]
        for metric in ("false positives", "false negatives", "not judged")
    },
}
BENCHMARK = Benchmark("math_answers", __doc__, measure, CRITERIA)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
