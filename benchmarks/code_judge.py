"""HumanEval's solutions and a broken version of each, judged in the sandbox and by bare processes.

    python -m benchmarks.code_judge --rows HumanEval.jsonl.gz --results benchmarks/results

A broken version has one fault, a slip of the hand in an operator, bound or constant, and a bare process has
shown that it fails: prompt, solution and tests as one program, as the data set is usually run. All is pinned
to one core, the sandbox's processes too.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks._faults import faults_in
from benchmarks._results import Criteria, Figure, Row, measured, spread
from benchmarks._run import Asked, Benchmark, main
from env.code.judge import judge
from env.code.offer import CodeTasks, make_tasks
from env.code.problems import Problem
from env.offer import TaskSet
from env.sandbox import Sandbox

BARE_SECONDS = 5.0


def problems_of(path: str) -> list[Problem]:
    """Returns the problems of a file of rows."""
    made = make_tasks(CodeTasks(rows=path, num_train=10**6, num_held_out=1), 0)
    assert isinstance(made, TaskSet)
    return [Problem.from_text(task.ground_truth) for task in made.tasks]


def passes_bare(problem: Problem, solution: str) -> bool:
    """Returns whether a solution passes a problem's test program in a process without any confinement."""
    parts = [problem.given, solution, problem.program, f"check({problem.entry_point})"]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-"],
            input="\n".join(parts),
            capture_output=True,
            text=True,
            timeout=BARE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def broken_versions(problem: Problem) -> Iterator[str]:
    """Yields solutions with one fault; the last one returns something else whatever the solution does."""
    for fault in faults_in(problem.reference, problem.entry_point):
        if fault.line > problem.given.count("\n") + 1:  # in what was asked for
            yield fault.put_in(problem.reference)
    name = problem.entry_point
    yield f"{problem.reference}\n_right = {name}\n\ndef {name}(*given):\n    return [_right(*given)]\n"


def broken(problem: Problem) -> str:
    """Returns the first broken version that a bare process refuses."""
    return next(version for version in broken_versions(problem) if not passes_bare(problem, version))


def timed(
    judged: Callable[[Problem, str], bool], pairs: list[tuple[Problem, str]]
) -> tuple[int, list[float]]:
    """Returns how many solutions pass, and the seconds of each."""
    passed, seconds = 0, []
    for problem, solution in pairs:
        start = time.perf_counter()
        passed += judged(problem, solution)
        seconds.append(time.perf_counter() - start)
    return passed, seconds


def measure(asked: Asked) -> list[Row]:
    """Returns verdicts and times of both ways, on whole solutions and on broken ones."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    problems = problems_of(str(Path(asked.options.rows).resolve()))
    right = [(problem, problem.reference) for problem in problems]
    wrong = [(problem, broken(problem)) for problem in problems]
    start = time.perf_counter()
    sandbox = Sandbox()
    found = measured("sandbox", {"seconds to start": time.perf_counter() - start})
    ways: dict[str, Callable[[Problem, str], bool]] = {
        "sandbox": lambda problem, solution: judge(problem, solution, sandbox).success,
        "bare": passes_bare,
    }
    for way, judged in ways.items():
        for kind, pairs in (("right", right), ("broken", wrong)):
            passed, seconds = timed(judged, pairs)
            figures: dict[str, Figure] = {
                "passed": passed,
                "per second": len(pairs) / sum(seconds),
                "milliseconds": tuple(1000 * x for x in spread(seconds)),
            }
            found += measured(f"{way} {kind}", figures, len(pairs))
    sandbox.close()
    return found


CRITERIA: Criteria = {
    "every right solution passes": lambda t: (
        t("sandbox right", "passed") == t.row("sandbox right", "passed").n
    ),
    "no broken one passes": lambda t: t("sandbox broken", "passed") == 0,
    "the bare process says the same": lambda t: (
        (t("bare right", "passed"), t("bare broken", "passed"))
        == (t("sandbox right", "passed"), t("sandbox broken", "passed"))
    ),
    "at least 20 a second on a core": lambda t: (
        min(t("sandbox right", "per second"), t("sandbox broken", "per second")) >= 20
    ),
}
BENCHMARK = Benchmark("code_judge", __doc__, measure, CRITERIA, options={"rows": "HumanEval.jsonl.gz"})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
