"""What a comparison came to, as rows of results: its runs, its arms, and what its method has over them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._results import Row, measured
from benchmarks._run import Asked, make_stages
from pipeline.artifacts.artifact import Artifact
from pipeline.runs import ARMS
from pipeline.statistics import ClusterBootstrap
from stages.wiring.arm_costs import COSTS


def comparison_rows(config: str, run: str, asked: Asked) -> list[Row]:
    """Makes or finishes the comparison of a configuration; returns the rows of what it says."""
    make_stages(config, run, ("comparison",), asked.settings, asked.data_dir)
    folder = asked.data_dir / run
    found = Artifact.open(folder, "comparison")
    report = found.report
    rows = list(_of_runs(folder, found.table("comparison").to_pylist(), found.table("spending").to_pylist()))
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
        yield from measured(
            f"{arm} seed {seed}",
            {"start": start["success"], "actor": actor["success"], "gain": gain}
            | {f"{measure} spent": sum(row[measure] for row in paid) for measure in COSTS},
            len(both),
        )
        yield from critic_rows(folder / ARMS / f"{arm}-seed{seed}", f"{arm} seed {seed}")


def critic_rows(run: Path, name: str) -> list[Row]:
    """Returns whether a run's critic passed its gate, and how well it tells steps; nothing without one."""
    if not (run / "critic_report").is_dir():
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
