"""How many programs a second the sandbox judges, beside a bare subprocess that confines nothing.

    python -m benchmarks.sandbox_speed

One caller, one program at a time, so nothing uses more than a core. Each program defines a small function
with usual imports, is called on eight inputs and hands its results out, and the caller compares them; an
asked program gets one input after the other. `bare subprocess` is what a judge without a sandbox does:
`subprocess.run` of this Python. All kinds take turns. Start-up is a sandbox from nothing to its first value,
the attacks on its walls included; of a subprocess, one that does nothing.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from pydantic import JsonValue

from benchmarks._results import Criteria, Row, at_least, measured, ratios, spread
from benchmarks._run import Asked, Benchmark, in_turns, main
from env.sandbox import Limits, Sandbox

WITHOUT: tuple[tuple[str, ...], ...] = ((), ("namespaces",))
BARE = "bare subprocess"
LIMITS = Limits()
SOLUTION = '''
import collections, functools, itertools, math, re
from typing import List

def candidate(text: str) -> List[str]:
    """Returns the words of a text by how often they occur, then by name."""
    words = re.findall(r"[a-z]+", text.lower())
    return sorted(collections.Counter(words), key=lambda word: (-words.count(word), word))
'''
INPUTS: list[JsonValue] = [
    "",
    "a",
    "b a b",
    "one two two",
    "To be, or not to be",
    "x " * 50,
    "the end. The End!",
    "z y x",
]
EXPECTED = [
    [],
    ["a"],
    ["b", "a"],
    ["two", "one"],
    ["be", "to", "not", "or"],
    ["x"],
    ["end", "the"],
    ["x", "y", "z"],
]
PROGRAM = SOLUTION + "\ndeliver([candidate(text) for text in argument])"
ANSWERER = SOLUTION + "\nwhile True: deliver(candidate(receive()))"
PRINTER = f"{SOLUTION}\nimport json\nprint(json.dumps([candidate(text) for text in {INPUTS!r}]))"


def judge_in(sandbox: Sandbox) -> None:
    """Judges one program by what it delivers."""
    assert sandbox.run(PROGRAM, INPUTS, LIMITS).value == EXPECTED


def judge_by_questions(sandbox: Sandbox) -> None:
    """Judges one program by asking it input after input."""
    with sandbox.open(ANSWERER, None, LIMITS) as box:
        assert [box.ask(text).value for text in INPUTS] == EXPECTED


def judge_bare() -> None:
    """Judges one program by what it prints."""
    done = subprocess.run([sys.executable, "-c", PRINTER], capture_output=True, check=True, timeout=10)
    assert json.loads(done.stdout) == EXPECTED


def parse_in(sandbox: Sandbox) -> None:
    """Has one text read by a worker."""
    assert sandbox.call("json:loads", "[1, 2]", LIMITS).value == [1, 2]


def rate(work: Callable[[], object], times: int) -> Callable[[], float]:
    """Returns a run that measures how often a second the work is done."""

    def run() -> float:
        started = time.perf_counter()
        for _ in range(times):
            work()
        return times / (time.perf_counter() - started)

    return run


def start_up(without: tuple[str, ...]) -> float:
    """Returns the seconds from nothing to a sandbox's first value."""
    started = time.perf_counter()
    sandbox = Sandbox(without)
    assert sandbox.run("deliver(1)", None, LIMITS).value == 1
    seconds = time.perf_counter() - started
    sandbox.close()
    return seconds


def start_bare() -> float:
    """Returns the seconds of a subprocess that does nothing."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    return time.perf_counter() - started


def measure(asked: Asked) -> list[Row]:
    """Returns rates and start-up times of each level that this machine has, and of a subprocess."""
    times, repeats = asked.options.programs, asked.options.repeats
    boxes = {f"level {box.level}": (box, off) for off in WITHOUT if (box := Sandbox(off))}
    works: dict[tuple[str, str], Callable[[], float]] = {}
    for name, (box, off) in boxes.items():
        works[name, "programs a second"] = rate(partial(judge_in, box), times)
        works[name, "asked programs a second"] = rate(partial(judge_by_questions, box), times)
        works[name, "calls a second"] = rate(partial(parse_in, box), times)
        works[name, "start-up, s"] = partial(start_up, off)
    works[BARE, "programs a second"] = rate(judge_bare, times)
    works[BARE, "start-up, s"] = start_bare
    found = in_turns({f"{name}: {metric}": work for (name, metric), work in works.items()}, repeats)
    rows = []
    for name, metric in works:
        rows += measured(name, {metric: spread(found[f"{name}: {metric}"])}, repeats)
    for name, (box, _) in boxes.items():
        pairs = (found[f"{variant}: programs a second"] for variant in (name, BARE))
        rows += measured(name, {"programs a second / bare": ratios(*pairs)}, repeats)
        box.close()
    return rows


CRITERIA: Criteria = {
    f"{name}: at least 20 {what} a second": at_least(20, name, f"{what} a second")
    for name in ("level 2", "level 1")
    for what in ("programs", "asked programs")
}
BENCHMARK = Benchmark("sandbox_speed", __doc__, measure, CRITERIA, options={"programs": 50, "repeats": 5})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
