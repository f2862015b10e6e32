"""What a comparison came to, as rows of results: its runs, its arms, and what its method has over them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from benchmarks._results import Row, measured
from benchmarks._run import Asked, code_of, unfinished
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.manifest import read_manifest
from pipeline.columns import SPECS
from pipeline.errors import ExitCode
from pipeline.runs import ARMS
from pipeline.schema import read_parquet
from pipeline.statistics import ClusterBootstrap
from stages.wiring.arm_costs import COSTS

REFUSED = re.compile(rf"(\w+) ended with {ExitCode.QUALITY:d}: (.*?)( Next: .*)?", re.DOTALL)
"""What a comparison says of a run that a stage refused, which no other start would mend."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison as its stage has left it: a refused run has what it came to, as any other."""

    run_dir: Path

    @property
    def report(self) -> dict[str, Any]:
        """Its report.json."""
        return dict(json.loads((self.run_dir / "comparison" / "report.json").read_text("utf-8")))

    def table(self, name: str) -> list[dict[str, Any]]:
        """Returns the rows of one of its tables."""
        found = read_parquet(self.run_dir / "comparison" / f"{name}.parquet", SPECS[name])
        return list(found.to_pylist())


def compare(config: str, run: str, settings: Sequence[str], asked: Asked) -> Comparison:
    """Makes or finishes a comparison; runs that a stage refused do not keep it from the others.

    `asked.refused` says of them why. Raises SystemExit, as `make_stages` does, if others came to no end.
    """
    code = code_of(config, run, "comparison", settings, asked.data_dir)
    made = Comparison(asked.data_dir / run)
    failed = made.report["failed"] if code == ExitCode.FAILED_ITEMS else {}
    refused = {name: found for name, words in failed.items() if (found := REFUSED.fullmatch(words))}
    if code and (not refused or len(refused) < len(failed)):
        raise unfinished(run, "comparison", code)
    few = {name: shorten(f"{of[1]}: {of[2]}", 200, placeholder=" ...") for name, of in refused.items()}
    asked.refused.update(few)
    return made


def comparison_rows(config: str, run: str, asked: Asked) -> list[Row]:
    """Makes or finishes the comparison of a configuration; returns the rows of what it says."""
    found = compare(config, run, asked.settings, asked)
    folder, report = found.run_dir, found.report
    rows = list(_of_runs(folder, found.table("comparison"), found.table("spending")))
    for arm in report["arms"]:
        for measure in COSTS:
            own = report["measures"][measure]["arms"][arm]
            figures = {f"success at equal {measure}": tuple(own["success_at_budget"].values())}
            figures |= {
                f"{measure} to the threshold": own["cost_to_threshold"],
                f"{measure} spent": own["spent"],
            }
            rows += measured(arm, figures, len(report["arms"][arm]["seeds"]))
    for measure in COSTS:
        for claim in report["measures"][measure]["claims"]:
            rows += _claim(claim, measure)
    return rows


def _of_runs(folder: Path, looks: list[dict[str, Any]], spending: list[dict[str, Any]]) -> Iterable[Row]:
    """Yields the rows of every run: success before and after, gain paired by task, costs, the gate."""
    for arm, seed in sorted({(look["arm"], look["seed"]) for look in looks}):
        own = [look for look in looks if (look["arm"], look["seed"]) == (arm, seed)]
        start, actor = (pick(own, key=lambda look: look["iteration"]) for pick in (min, max))
        before, after = (dict(zip(x["task_ids"], x["rewards"], strict=True)) for x in (start, actor))
        cluster = dict(zip(actor["task_ids"], actor["clusters"], strict=True))
        both = sorted(before.keys() & after.keys())
        gain = ClusterBootstrap([cluster[task] for task in both]).mean(
            np.array([after[task] - before[task] for task in both])
        )
        paid = [row for row in spending if (row["arm"], row["seed"]) == (arm, seed)]
        # A run that was refused before its actor has the starting policy's look alone.
        trained = {"actor": actor["success"], "gain": gain} if actor is not start else {}
        costs = {f"{measure} spent": sum(row[measure] for row in paid) for measure in COSTS}
        yield from measured(f"{arm} seed {seed}", {"start": start["success"]} | trained | costs, len(both))
        yield from critic_rows(folder / ARMS / f"{arm}-seed{seed}", f"{arm} seed {seed}")


def critic_rows(run: Path, name: str) -> list[Row]:
    """Returns whether a run's critic passed its gate, and how well it tells steps; nothing without one."""
    if read_manifest(run / "critic_report") is None:  # or one that refused to judge
        return []
    report = Artifact.open(run, "critic_report").report
    figures: dict[str, Any] = {"gate passed": report["gate"]["passed"]}
    for of in ("ev_within", "rho_a"):
        found = report["measures"]["bare"][of]
        figures[of] = found["value"], found["low"], found["high"]
    return measured(name, figures)


def _claim(claim: Mapping[str, Any], measure: str) -> Iterable[Row]:
    """Yields what the method has over an arm, and Holm's p of it."""
    for name, label in (("difference", f"difference at equal {measure}"), ("ratio", f"ratio of {measure}")):
        of = claim[name]
        figures = {label: (of["value"], of["low"], of["high"]), f"{label}, p": of["p_holm"]}
        if name == "ratio" and of["value"] is None:
            figures |= {f"{label}, at least": of["at_least"], f"{label}, at most": of["at_most"]}
        yield from measured(f"against {claim['against']}", figures, len(claim["seeds"]))
