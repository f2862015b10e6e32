"""Trains the tiny policy by the chain on levels 1 to 3 together and says what it gained at each of them.

    python benchmarks/phone_levels.py       # over an hour on two CPU cores; goes on where it was stopped

Held-out tasks: new tasks of training companies and tasks of companies never seen; intervals are bootstraps
over companies. The run is `<data dir>/phone-l3-tiny` and stays there, for people to look at.
Results: benchmarks/results/phone_levels.json. Exits 1 if a criterion fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measuring import RESULTS, ROOT, Criteria, conclude
from benchmarks.demo_seeds import change, machine_facts, run_chain, share

CONFIG = "configs/phone-l3-tiny.yaml"
LEVELS = (1, 2, 3)


def improves_at(level: int) -> Any:
    """Returns the criterion that a level's gain is above zero, its interval's lower bound included."""
    return lambda results: results["summary"]["by_slice"][f"level {level}"]["interval"][0] > 0


CRITERIA: Criteria = {
    **{f"level {level}: first try gains, interval above 0": improves_at(level) for level in LEVELS},
    "gate: PASS": lambda results: results["summary"]["critic"]["gate"] == "PASS",
}


def table(summary: dict[str, Any]) -> list[str]:
    """Returns the Markdown table of what was gained: a row per slice, start -> actor in percent."""
    lines = ["| first try, temperature 1 | start -> actor, % (gain in points) | tasks |", "|---|---|---|"]
    return lines + [
        f"| {name} | {change(part)} | {part['tasks']:,} |" for name, part in summary["by_slice"].items()
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Makes or finishes the run, prints and writes the table; returns 1 if a criterion is not met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", dest="settings")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data", help="where the run goes")
    parser.add_argument("--results", type=Path, default=RESULTS / "phone_levels.json")
    options = parser.parse_args(argv)
    settings = [*options.settings, f"run.seed={options.seed}"]
    summary = run_chain(CONFIG, "phone-l3-tiny", options.data_dir.resolve(), settings)
    print("\n".join(table(summary)))
    critic = summary["critic"]
    print(f"critic: gate {critic['gate']}, explained variance {share(critic['ev'])}, ", end="")
    print(f"within rollouts {share(critic['ev_within'])}")
    print(f"{summary['minutes']:.1f} minutes, {summary['budget']['rollouts']:,} rollouts sampled to train")
    results = {
        "config": CONFIG,
        "settings": options.settings,
        "machine": machine_facts(),
        "summary": summary,
    }
    return conclude(options.results, results, CRITERIA)


if __name__ == "__main__":
    sys.exit(main())
