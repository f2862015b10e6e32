"""Verdicts on the lines of gsm8k's solutions, as they are and with one result altered.

    python -m benchmarks.math_steps

What makes a line `unknown` was chosen on the training solutions, so the test solutions are the fair measure.

Whether an annotated calculation is right is computed here in floating point, by nothing of env/math. An
altered solution has one result, drawn by the seed, off by one, two or ten in its last digit, in annotation
and in the text; the first `wrong` line must be that one. `annotated` solutions have gsm8k's `<<48/2=24>>`,
`bare` ones only the text, as a policy writes it.
"""

import ast
import json
import operator
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks._results import Criteria, Row, at_least, measured
from benchmarks._run import ROOT, Asked, Benchmark, main
from env.math.steps import LineCheck, check_lines
from env.math.worked import slip
from pipeline.statistics import wilson

ANNOTATION = re.compile(r"<<([^<>=\n]*)=([^<>\n]*)>>")
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Solution(NamedTuple):
    """A row of gsm8k."""

    question: str
    text: str  # without the answer's line and blank ones


def solutions(split: str) -> list[Solution]:
    """Returns a split of gsm8k; SystemExit if it lies in no `shared/data` beside the project."""
    found = [folder / "shared" / "data" / "gsm8k" / f"{split}.jsonl" for folder in ROOT.parents]
    path = next(filter(Path.is_file, found), None)
    if path is None:
        raise SystemExit(f"gsm8k is not in ../shared/data/gsm8k; put its {split}.jsonl there")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        Solution(row["question"], re.sub(r"\n\s*\n", "\n", row["answer"].partition("\n####")[0]))
        for row in rows
    ]


def is_right(expression: str, result: str) -> bool | None:
    """Returns whether a calculation is right up to its last digit; None if Python cannot read it."""
    try:
        value, written = (
            _value(ast.parse(t.replace(",", ""), mode="eval").body) for t in (expression, result)
        )
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError):
        return None
    digits = len(result.partition(".")[2])
    return abs(value - written) < 10.0**-digits + 1e-9 if digits else abs(value - written) < 1e-6


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.UnaryOp):
        return _value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    if isinstance(node, ast.BinOp):
        return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    raise KeyError(type(node))


def bare(text: str) -> str:
    """Returns a solution without annotations."""
    return ANNOTATION.sub("", text)


def altered(solution: Solution, rng: Random) -> tuple[str, int] | None:
    """Returns a solution with one wrong result, and its line's number; None if there is none to alter."""
    places = [
        (number, found)
        for number, line in enumerate(solution.text.split("\n"))
        for found in ANNOTATION.finditer(line)
        if is_right(found[1], found[2]) and re.fullmatch(r"\d+(?:\.\d+)?|\.\d+", found[2])
    ]
    if not places:
        return None
    number, found = rng.choice(places)
    lines = solution.text.split("\n")
    line, wrong = lines[number], slip(rng, found[2])
    after = line[found.end() :]
    after = wrong + after[len(found[2]) :] if after.startswith(found[2]) else after
    lines[number] = f"{line[: found.start()]}<<{found[1]}={wrong}>>{after}"
    return "\n".join(lines), number


def first_wrong(text: str, question: str) -> LineCheck | None:
    """Returns the check of the first line that is wrong."""
    return next((check for check in check_lines(text, question) if check.status == "wrong"), None)


def as_they_are(split: str, found: list[Solution]) -> Iterator[Row]:
    """Yields what is said of a split's solutions as they are."""
    calculations = Counter[str]()
    for variant, strip in (("annotated", False), ("bare", True)):
        lines, sound = Counter[str](), 0
        for solution in found:
            checks = check_lines(bare(solution.text) if strip else solution.text, solution.question)
            lines.update(check.status for check in checks)
            said = [line for line in solution.text.split("\n") if line.strip()]
            for line, check in zip(said, checks, strict=True):
                right = [is_right(x[1], x[2]) for x in ANNOTATION.finditer(line)]
                if not strip:
                    calculations.update(str(r) for r in right)
                if check.status == "wrong":
                    print(f"{split}, {variant}: {check.quote!r} in {line!r}", file=sys.stderr)
                    sound += bool(right) and False not in right
        figures = {f"lines {status}": lines[status] for status in ("ok", "wrong", "unknown")}
        if not strip:
            figures["wrong lines whose calculations are right"] = sound
        yield from measured(f"{split}, {variant}", figures)
    names = {"True": "right", "False": "false", "None": "unreadable"}
    yield from measured(f"{split}, calculations", {names[key]: calculations[key] for key in names})


def with_an_error(split: str, found: list[Solution], seed: int) -> Iterator[Row]:
    """Yields how often the altered line is the first wrong one."""
    rng = Random(seed)
    made = [(solution, change) for solution in found if (change := altered(solution, rng)) is not None]
    for variant, strip in (("annotated", False), ("bare", True)):
        hits = Counter[str]()
        for solution, (text, number) in made:
            check = first_wrong(bare(text) if strip else text, solution.question)
            hits["none" if check is None else "there" if check.number == number + 1 else "elsewhere"] += 1
        shares = {name: wilson(hits[name], len(made)) for name in ("there", "elsewhere", "none")}
        yield from measured(
            f"{split}, {variant}, altered",
            {f"found {name}": share for name, share in shares.items()},
            len(made),
        )


def measure(asked: Asked) -> list[Row]:
    """Returns what is said of all solutions."""
    return [
        row
        for split in ("train", "test")
        for found in [solutions(split)]
        for row in (*as_they_are(split, found), *with_an_error(split, found, asked.seed))
    ]


CRITERIA: Criteria = {
    "no line whose annotated calculations are right is wrong": lambda t: (
        t("train, annotated", "wrong lines whose calculations are right") == 0
    ),
    "at least 95 % of altered results are found at exactly their line": at_least(
        0.95, "train, annotated, altered", "found there"
    ),
}
BENCHMARK = Benchmark("math_steps", __doc__, measure, CRITERIA)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
