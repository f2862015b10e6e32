"""Reruns the demo on several seeds and holds each against what the demo must show.

    python benchmarks/demo_seeds.py                 # seeds 0, 1, 2: prints the table, writes the results
    python benchmarks/demo_seeds.py --readme        # puts the table of the written results into README.md
    python benchmarks/demo_seeds.py --curves data/demo   # copies a run's learning curves beside the results

Each seed runs the same stage commands as `make demo`, in `<data dir>/demo-seed<k>`. A run that is there
already goes on where it stopped, and the results say so; the others are removed at the end unless --keep.
Results: benchmarks/results/demo_seeds.json and demo_curves.svg. Exits 1 if a criterion fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.cli.commands import MAIN_CHAIN
from stages.summary import SKILLS, share

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "demo_seeds.json"
CURVES = ROOT / "benchmarks" / "results" / "demo_curves.svg"
README = ROOT / "README.md"
BEGIN, END = "<!-- demo_seeds table -->", "<!-- end of demo_seeds table -->"

Summary = dict[str, Any]


def bounds(numbers: Sequence[float | None]) -> tuple[float, float]:
    """Returns (low, high); an undefined bound is NaN, and NaN passes no comparison."""
    low, high = (math.nan if number is None else float(number) for number in numbers)
    return low, high


def number(value: float | None) -> float:
    """Returns a number of a summary; an undefined one is NaN, which passes no comparison."""
    return math.nan if value is None else float(value)


def skill_above_zero(name: str) -> Callable[[Summary], bool]:
    """Returns the criterion that a skill's lower bound is above zero."""
    return lambda summary: bounds(summary["critic"][name]["interval"])[0] > 0


CRITERIA: dict[str, Callable[[Summary], bool]] = {
    "start: first try in 15-45 %": lambda s: 0.15 <= number(s["first_try"]["start"]) <= 0.45,
    "first try: gain >= 20 points, with an interval": lambda s: (
        number(s["first_try"]["gain"]) >= 0.20 and all(map(math.isfinite, bounds(s["first_try"]["interval"])))
    ),
    "greedy: start < 60 %": lambda s: number(s["greedy"]["start"]) < 0.60,
    "greedy: gain >= 10 points": lambda s: number(s["greedy"]["gain"]) >= 0.10,
    "unseen companies: change not below 0": lambda s: bounds(s["unseen_companies"]["interval"])[1] >= 0,
    "unseen companies: >= 400 rollouts a side": lambda s: s["unseen_companies"]["rollouts"] >= 400,
    "gate: PASS": lambda s: s["critic"]["gate"] == "PASS",
    **{f"critic: {name.replace('_', ' ')} > 0": skill_above_zero(name) for name in SKILLS},
    "at most 20 minutes": lambda s: max(number(s["minutes"]), number(s.get("elapsed_minutes", 0.0))) <= 20,
}
"""What each seed must show; name -> whether a summary shows it."""


def judge(summary: Summary) -> dict[str, bool]:
    """Returns criterion -> whether the run meets it; what cannot be computed is not met."""
    return {name: bool(met(summary)) for name, met in CRITERIA.items()}


def percent(value: float | None) -> str:
    """Returns a share as text in percent."""
    return "-" if value is None else f"{100 * value:.1f}"


def points(value: float | None) -> str:
    """Returns a difference of shares as text in points, with its sign."""
    return "-" if value is None else f"{100 * value:+.1f}"


def change(part: Summary) -> str:
    """Returns `start -> actor (gain [low, high])`, in percent and points."""
    low, high = part["interval"]
    gain = f"{points(part['gain'])} [{points(low)}, {points(high)}]"
    return f"{percent(part['start'])} -> {percent(part['actor'])} ({gain})"


def skill_cell(name: str) -> Callable[[Summary], str]:
    """Returns the cell of one of the critic's skills."""
    return lambda summary: share(summary["critic"][name])


ROWS: dict[str, Callable[[Summary], str]] = {
    "first try, temperature 1": lambda s: change(s["first_try"]),
    "first try, greedy": lambda s: change(s["greedy"]),
    "with feedback": lambda s: change(s["with_feedback"]),
    "unseen companies, first try": lambda s: change(s["unseen_companies"]),
    "critic's gate": lambda s: str(s["critic"]["gate"]),
    **{
        f"critic's {name.replace('_vs_', ' against ').replace('_', ' ')}": skill_cell(name) for name in SKILLS
    },
    "minutes": lambda s: f"{s['minutes']:.1f}",
    "rollouts sampled": lambda s: f"{s['budget']['rollouts']:,}",
    "tokens sampled": lambda s: f"{s['budget']['tokens']:,}",
    "updates of the actor": lambda s: f"{s['budget']['updates']:,}",
}
"""The table's rows: name -> cell of one seed."""


def print_table(results: dict[str, Any]) -> None:
    """Prints numbers and criteria, a column per seed."""
    seeds = results["seeds"]
    lines = [("", *(f"seed {s['seed']}" for s in seeds))]
    lines += [(name, *(cell(s) for s in seeds)) for name, cell in ROWS.items()]
    lines += [(name, *("PASS" if s["criteria"][name] else "FAIL" for s in seeds)) for name in CRITERIA]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def markdown(results: dict[str, Any], *, with_curves: bool) -> str:
    """Returns the README's table: the three seeds' numbers, and whether all criteria were met."""
    seeds = results["seeds"]
    machine = results["machine"]
    met = sum(all(s["criteria"].values()) for s in seeds)
    lines = [
        "Success in % on held-out tasks, starting policy -> actor (gain in points with its 95 % interval, a "
        f"bootstrap over companies); {machine['cpus']} CPU cores, torch {machine['torch']}. "
        f"{met} of {len(seeds)} seeds meet every criterion of `benchmarks/demo_seeds.py`.",
        "",
        "| | " + " | ".join(f"seed {s['seed']}" for s in seeds) + " |",
        "|---" * (len(seeds) + 1) + "|",
    ]
    lines += [f"| {name} | " + " | ".join(cell(s) for s in seeds) + " |" for name, cell in ROWS.items()]
    if failed := [f"seed {s['seed']}: {name}" for s in seeds for name, ok in s["criteria"].items() if not ok]:
        lines += ["", "Not met: " + "; ".join(failed) + "."]
    if with_curves:
        lines += ["", f"![Learning curves of seed {seeds[0]['seed']}](benchmarks/results/{CURVES.name})"]
    return "\n".join(lines)


def put_into_readme(results: dict[str, Any], readme: Path, *, with_curves: bool) -> None:
    """Rewrites what stands between the two markers.

    Raises:
        SystemExit: the markers are not there.
    """
    text = readme.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{readme}: wants the markers {BEGIN} and {END}, once each")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    table = markdown(results, with_curves=with_curves)
    readme.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def learning_curves(page: str) -> str:
    """Returns the first drawing of a run's summary.html, as a file of its own.

    Raises:
        ValueError: the page has no drawing.
    """
    start, stop = page.find("<svg"), page.find("</svg>")
    if start < 0 or stop < 0:
        raise ValueError("no <svg> on the page; run the summary again")
    return page[start : stop + len("</svg>")] + "\n"


def machine_facts() -> dict[str, Any]:
    """Returns what the minutes depend on; nothing that names the machine."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cpus = os.cpu_count() or 0
    return {
        "cpus": cpus,
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def run_chain(config: str, name: str, data_dir: Path, settings: Sequence[str]) -> Summary:
    """Returns the summary of a run made or finished by the stage commands.

    Raises:
        SystemExit: a stage failed; what it made stays, and the same command goes on from there.
    """
    resumed = (data_dir / name).exists()
    began = time.monotonic()
    for stage in (*MAIN_CHAIN, "summary"):
        command = [sys.executable, "-m", f"stages.{stage}", config, "--run", name]
        command += [*settings, f"run.data_dir={json.dumps(str(data_dir))}"]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: {stage} ended with {done.returncode}. The same command goes on")
    summary: Summary = json.loads((data_dir / name / "summary.json").read_text(encoding="utf-8"))
    # Loading the stages included; says little of a run that only went on.
    summary["elapsed_minutes"] = round((time.monotonic() - began) / 60, 2)
    summary["resumed"] = resumed
    return summary


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the seeds, prints and writes the table; returns 1 if a criterion is not met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--config", default="configs/demo.yaml")
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", dest="settings")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data", help="where the runs go")
    parser.add_argument("--keep", action="store_true", help="keep the runs that this call has made")
    parser.add_argument("--readme", action="store_true", help="only put the results into README.md")
    parser.add_argument("--curves", type=Path, metavar="RUN_DIR", help="only copy a run's learning curves")
    options = parser.parse_args(argv)
    if options.curves:
        page = (options.curves / "summary.html").read_text(encoding="utf-8")
        CURVES.write_text(learning_curves(page), encoding="utf-8")
        print(f"wrote {CURVES.relative_to(ROOT)}")
    if options.readme:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
        if results["settings"]:
            raise SystemExit(f"{RESULTS.name} is not of the config as it is, but of {results['settings']}")
        put_into_readme(results, README, with_curves=CURVES.is_file())
        print(f"wrote {README.relative_to(ROOT)}")
    if options.curves or options.readme:
        return 0

    data_dir = options.data_dir.resolve()
    summaries = []
    for place, seed in enumerate(options.seeds):
        run_dir = data_dir / f"demo-seed{seed}"
        settings = [*options.settings, f"run.seed={seed}"]
        summaries.append(run_chain(options.config, run_dir.name, data_dir, settings))
        summaries[-1]["criteria"] = judge(summaries[-1])
        results = {
            "config": options.config,
            "settings": options.settings,
            "machine": machine_facts(),
            "seeds": summaries,
        }
        # After every seed, so that a stop loses no finished one.
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        if place == 0:
            page = (run_dir / "summary.html").read_text(encoding="utf-8")
            CURVES.write_text(learning_curves(page), encoding="utf-8")
        if not options.keep and not summaries[-1]["resumed"]:
            shutil.rmtree(run_dir)
    print_table(results)
    print(f"wrote {RESULTS.relative_to(ROOT)} and {CURVES.relative_to(ROOT)}")
    return 0 if all(all(summary["criteria"].values()) for summary in summaries) else 1


if __name__ == "__main__":
    sys.exit(main())
