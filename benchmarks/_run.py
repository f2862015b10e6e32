"""What every benchmark shares: options, seeds, criteria, and one flat file of results for each seed.

A script names its figures and criteria in a `Benchmark` and calls `main`:

    python -m benchmarks.NAME [--seeds 0 1 2] [--set section.key=value ...] [--data-dir DIR] [--results DIR]

Results are `benchmarks/results/NAME.json`, or `NAME-seed0.json` of a benchmark with seeds: command,
commit, machine, criteria, the runs of a comparison that a stage refused and why, and rows of seed, variant,
metric, value, low, high, n. What --quick, --set or another option than the default made lies in the data
directory instead, unless --results names a folder. `make results` renders the pages. Every script exits
with 1 if a criterion is not met.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks._results import Criteria, Row, judge, write_results, written
from stages.wiring.subrun import stops_with_parent

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Asked:
    """What one call asks of a benchmark for one seed."""

    seed: int
    settings: list[str]
    data_dir: Path
    is_quick: bool
    options: Any
    keep: Callable[[Sequence[Row]], object]  # writes the rows so far where the results go
    refused: dict[str, str]  # run of a comparison -> why a stage refused it; written beside the rows


@dataclass(frozen=True)
class Benchmark:
    """A script's figures and what they must show."""

    name: str  # of the script and of its results
    doc: str  # shown by --help
    measure: Callable[[Asked], Iterable[Row]]
    criteria: Criteria = field(default_factory=dict)
    seeds: tuple[int, ...] = ()  # made when no --seeds are given; empty for a benchmark that has none
    quick: tuple[str, ...] = ()  # settings of --quick, which judges nothing; empty: there is no such option
    options: Mapping[str, Any] = field(default_factory=dict)  # further ones, `--name VALUE`, with defaults


def main(benchmark: Benchmark, argv: Sequence[str] | None = None) -> int:
    """Measures every seed, prints and writes its rows and criteria; returns 1 if a criterion is not met."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        description=benchmark.doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(benchmark.seeds) or [0])
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", dest="settings")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data", help="where runs go")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where the results go")
    if benchmark.quick:
        parser.add_argument("--quick", action="store_true", help="tiny sizes: all works, nothing is judged")
    for name, default in benchmark.options.items():
        kind = str if default is None else type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    asked = parser.parse_args(argv)
    is_quick = benchmark.quick != () and asked.quick
    data_dir = asked.data_dir.resolve() / ("quick" if is_quick else "")
    options = {name: getattr(asked, name) for name in benchmark.options}
    is_standard = not (is_quick or asked.settings or options != dict(benchmark.options))
    folder = asked.results or (RESULTS if is_standard else data_dir)
    met = True
    for seed in asked.seeds:
        settings = [*(benchmark.quick if is_quick else ()), *asked.settings, f"run.seed={seed}"]
        path = folder / f"{benchmark.name}{f'-seed{seed}' if benchmark.seeds else ''}.json"
        head = {"command": command_of(benchmark.name, argv), "commit": commit(), "machine": machine_facts()}
        refused = dict[str, str]()

        def keep(
            rows: Sequence[Row], seed: int = seed, path: Path = path, head: Any = head, refused: Any = refused
        ) -> None:
            judged = {"criteria": judge(rows, benchmark.criteria)}
            write_results(path, head | judged | ({"refused": refused} if refused else {}), rows, seed)

        asks = Asked(seed, settings, data_dir, is_quick, SimpleNamespace(**options), keep, refused)
        rows = list(benchmark.measure(asks))
        criteria = judge(rows, benchmark.criteria)
        for row in rows:
            numbers = [written(x) for x in (row.value, row.low, row.high)]
            print(f"{row.variant:<50} {row.metric:<32} {numbers[0]} {numbers[1:]}")
        for name, is_met in criteria.items():
            print(f"{'PASS' if is_met else 'FAIL'}  {name}")
        for name, why in refused.items():
            print(f"REFUSED  {name}: {why}")
        keep(rows)
        print(f"wrote {path}", file=sys.stderr)
        met &= all(criteria.values())
    return 0 if met or is_quick else 1


def make_stages(
    config: str, run: str, stages: Sequence[str], settings: Sequence[str], data_dir: Path
) -> None:
    """Makes or finishes stages of a run by their commands; they stop if this process dies.

    Raises:
        SystemExit: one failed; what it made stays, and the same command goes on from there.
    """
    for stage in stages:
        if code := code_of(config, run, stage, settings, data_dir):
            raise unfinished(run, stage, code)


def code_of(config: str, run: str, stage: str, settings: Sequence[str], data_dir: Path) -> int:
    """Returns what a stage's command ends with; it stops if this process dies."""
    command = [sys.executable, "-m", f"stages.{stage}", config, "--run", run, *settings]
    command.append(f"run.data_dir={json.dumps(str(data_dir))}")
    return subprocess.run(command, cwd=ROOT, check=False, preexec_fn=stops_with_parent()).returncode


def unfinished(run: str, stage: str, code: int) -> SystemExit:
    """Returns what ends a benchmark whose stage did not come to its end."""
    return SystemExit(f"{run}: {stage} ended with {code}. The same command goes on")


def command_of(name: str, argv: Sequence[str]) -> str:
    """Returns the command that made a result, without folders of the machine."""
    kept, skip = [], False
    for word in argv:
        if word in ("--data-dir", "--results"):
            skip = True
        elif not skip:
            kept.append(word)
        else:
            skip = False
    return shlex.join(["python", "-m", f"benchmarks.{name}", *kept])


def commit() -> str:
    """Returns the commit of the code, with a mark if files differ from it that no benchmark writes.

    COMMIT names it on a machine that has the files alone.
    """
    if named := os.environ.get("COMMIT"):
        return named

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    written = (":!benchmarks/results", ":!docs/figures")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *written)
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("-dirty" if changed else "")


def machine_facts() -> dict[str, Any]:
    """Returns what the seconds depend on; nothing that names the machine."""
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers")},
        **({"gpus": gpus} if (gpus := names_of_gpus()) else {}),
    }


def names_of_gpus() -> list[str]:
    """Returns what the driver calls them; nothing without one."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def in_turns(runs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Returns what each run measures, once for warmth and then in turns."""
    for run in runs.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            found[name].append(run())
    return found


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """Returns a run that measures the seconds of its work."""

    def run() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return run
