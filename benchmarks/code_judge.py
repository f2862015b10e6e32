"""HumanEval's solutions and a broken version of each, judged in the sandbox and by bare processes.

    python -m benchmarks.code_judge

A broken version has one fault, a slip of the hand in an operator, bound or constant, and a bare process has
shown that it fails: prompt, solution and tests as one program, as the data set is usually run. All is pinned
to one core, the sandbox's processes too. Broken versions that never end are counted apart: each costs the
limit. Last, all that end are judged again on all cores, by one thread and by one for each, as vLLM's player
has them (decision 0101).
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks._faults import faults_in
from benchmarks._results import Criteria, Figure, Row, Table, measured, ratios, spread
from benchmarks._run import ROOT, Asked, Benchmark, in_turns, main
from env.code.judge import judge
from env.code.offer import CodeTasks, make_tasks
from env.code.problems import Problem
from env.offer import TaskSet
from env.sandbox import Sandbox

FILE = Path("shared/data/humaneval/HumanEval.jsonl.gz")
HUMANEVAL = next((folder / FILE for folder in ROOT.parents if (folder / FILE).is_file()), None)
BARE_SECONDS = 5.0


def problems_of(path: str) -> list[Problem]:
    """Returns the problems of a file of rows."""
    made = make_tasks(CodeTasks(rows=path, num_train=10**6, num_held_out=1), 0)
    assert isinstance(made, TaskSet)
    return [Problem.from_text(task.ground_truth) for task in made.tasks]


def run_bare(problem: Problem, solution: str) -> bool | None:
    """Returns whether a solution passes a test program in a bare process, None if that does not end."""
    parts = [problem.given, solution, problem.program, f"check({problem.entry_point})"]
    command = [sys.executable, "-I", "-S", "-"]
    try:
        done = subprocess.run(
            command, input="\n".join(parts), capture_output=True, text=True, timeout=BARE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode == 0


def broken_versions(problem: Problem) -> Iterator[str]:
    """Yields solutions with one fault; the last one returns something else whatever the solution does."""
    for fault in faults_in(problem.reference, problem.entry_point):
        if fault.line > problem.given.count("\n") + 1:  # in what was asked for
            yield fault.put_in(problem.reference)
    name = problem.entry_point
    yield f"{problem.reference}\n_right = {name}\n\ndef {name}(*given):\n    return [_right(*given)]\n"


def broken(problem: Problem) -> tuple[str, bool]:
    """Returns the first broken version that a bare process refuses, and whether it ends."""
    for version in broken_versions(problem):
        if not (passed := run_bare(problem, version)):
            return version, passed is not None
    raise AssertionError(f"no broken version of {problem.entry_point} fails")


Pairs = list[tuple[Problem, str]]


def timed(judged: Callable[[Problem, str], bool | None], pairs: Pairs) -> tuple[int, list[float]]:
    """Returns how many solutions pass, and the seconds of each."""
    passed, seconds = 0, []
    for problem, solution in pairs:
        start = time.perf_counter()
        passed += bool(judged(problem, solution))
        seconds.append(time.perf_counter() - start)
    return passed, seconds


def measure(asked: Asked) -> list[Row]:
    """Returns verdicts and times of both ways, on solutions that are right, broken and endless."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:1])
    if HUMANEVAL is None:
        raise SystemExit(f"HumanEval is not in ../{FILE.parent}; put its {FILE.name} there")
    problems = problems_of(str(HUMANEVAL))
    versions = [(problem, *broken(problem)) for problem in problems]
    kinds: dict[str, Pairs] = {
        "right": [(problem, problem.reference) for problem in problems],
        "broken": [(problem, version) for problem, version, ends in versions if ends],
        "endless": [(problem, version) for problem, version, ends in versions if not ends],
    }
    start = time.perf_counter()
    sandbox = Sandbox()
    found = measured("sandbox", {"seconds to start": time.perf_counter() - start})
    ways: dict[str, Callable[[Problem, str], bool | None]] = {
        "sandbox": lambda problem, solution: judge(problem, solution, sandbox).success,
        "bare": run_bare,
    }
    for way, judged in ways.items():
        for kind, pairs in kinds.items():
            passed, seconds = timed(judged, pairs)
            figures: dict[str, Figure] = {
                "solutions": len(pairs),
                "passed": passed,
                "per second": len(pairs) / sum(seconds),
                "milliseconds": tuple(1000 * x for x in spread(seconds)),
            }
            found += measured(f"{way} {kind}", figures, len(pairs))
    sandbox.close()
    os.sched_setaffinity(0, cores)
    return found + in_threads(kinds["right"] + kinds["broken"], len(cores))


def in_threads(pairs: Pairs, number: int) -> list[Row]:
    """Returns how many times as many a second so many threads judge as one, each with its own launcher."""
    sandbox = Sandbox()  # its launchers may use all cores

    def judged(pair: tuple[Problem, str]) -> bool:
        return judge(*pair, sandbox).success

    def seconds_of(threads: int) -> float:
        with ThreadPoolExecutor(threads) as pool:
            start = time.perf_counter()
            list(pool.map(judged, pairs))
            return time.perf_counter() - start

    turns = in_turns({f"{n}": partial(seconds_of, n) for n in (1, number)}, repeats=3)
    sandbox.close()
    one, many = turns["1"], turns[f"{number}"]
    figures: dict[str, Figure] = {"threads": number, "times as many a second": ratios(one, many)}
    return measured("in threads", figures, len(pairs))


def num_passed(t: Table, way: str) -> list[float]:
    """Returns how many right, broken and endless solutions pass."""
    return [t(f"{way} {kind}", "passed") for kind in ("right", "broken", "endless")]


CRITERIA: Criteria = {
    "all right solutions pass and no broken one": lambda t: num_passed(t, "sandbox") == [164, 0, 0],
    "the bare process says the same": lambda t: num_passed(t, "bare") == [164, 0, 0],
    "at least 20 a second on a core, of those that end": lambda t: (
        min(t("sandbox right", "per second"), t("sandbox broken", "per second")) >= 20
    ),
}
BENCHMARK = Benchmark("code_judge", __doc__, measure, CRITERIA)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
