"""The gate before critics that must not pass: some know no steps, others are fitted wrongly on real labels.

    python benchmarks/critic_gate.py            # the run of critic_quality.py's seed 0, or makes it first
    python benchmarks/critic_gate.py --quick    # minutes: tiny sizes, results beside its run

All are judged on the bare states of the seed's audit by the bounds of the configuration, the method's own
critic among them; sibling sets and probes, which need a critic to be played against, are judged in the run's
own gate.json, which must pass as well. A row is kept as soon as it is made: the same command goes on.
Results: benchmarks/results/critic_gate.json; of another run or with other settings, critic_gate.json beside
it. Exits 1 if the gate lets one pass, refuses one for another reason than stated, or refuses the method's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._critics import (
    QUICK,
    STAGES,
    Material,
    audit_of,
    fitted,
    make_stages,
    remembered,
    values_of,
)
from benchmarks._measuring import RESULTS, ROOT, conclude
from benchmarks.demo_seeds import machine_facts
from critics.audit.baselines import constant, task_rate
from critics.audit.data import AuditData
from critics.audit.measures import measure
from critics.report import gate
from pipeline.config import load_config
from pipeline.errors import ArtifactError
from pipeline.ids import digest
from pipeline.statistics import interval_dict
from pipeline.types import Label
from stages.settings import Config, CriticReport

SHOWN = ("ev", "ev_within", "rho_a", "skill_over_task_rate", "skill_over_position", "ece_excess")
METHOD = "soft"


def shuffled(labels: Sequence[Label], seed: int) -> list[Label]:
    """Returns the labels with what is known of one state told of another, within contexts."""
    rng = np.random.default_rng(seed)
    told = list(labels)
    for context in ("bare", "guided"):
        own = [i for i, label in enumerate(labels) if label.context == context]
        for to, source in zip(own, rng.permutation(own), strict=True):
            of = labels[source]
            told[to] = replace(
                labels[to],
                num_continuations=of.num_continuations,
                num_success=of.num_success,
                outcome=of.outcome,
                target=of.target,
                weight=of.weight,
                label_source=of.label_source,
            )
    return told


def guided_outcomes(labels: Sequence[Label]) -> list[Label]:
    """Returns what guided rollouts came to, without anything that was sampled from bare states."""
    return [label for label in labels if label.context == "guided" and label.outcome is not None]


def of_few_rollouts(labels: Sequence[Label], share: float = 0.1, least: int = 24) -> list[Label]:
    """Returns the labels of a share of the rollouts, chosen by hash: few enough to learn by heart.

    Of fewer than `least` rollouts nothing could be validated, as --quick would have it.
    """
    place = {label.rollout_id: int(digest("few", label.rollout_id)[:8], 16) / 16**8 for label in labels}
    most = max([share, *sorted(place.values())[:least]])
    return [label for label in labels if place[label.rollout_id] <= most]


@dataclass(frozen=True, slots=True)
class Bad:
    """A critic that is fitted as it must not be.

    Attributes:
        reasons: conditions of the gate that it must fail.
        labels: the method's labels and the seed -> what it is fitted on.
        changes: settings of its critic section.
        by_heart: its last weights are kept and calibrated on what they were fitted on.
    """

    reasons: tuple[str, ...]
    labels: Callable[[list[Label], int], list[Label]] = lambda labels, _: labels
    changes: tuple[tuple[str, Any], ...] = ()
    by_heart: bool = False


def by_step(material: Material, audit: AuditData) -> np.ndarray:
    """Returns [N] the share of successes of the bare rollouts of the training tasks that came to the step."""
    counts: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for rollout in material.rollouts:
        if rollout.reward is not None and not rollout.guided:
            for step in rollout.steps:
                for place in (-1, step.step_index):  # -1: all of them, for a step that none came to
                    counts[place][0] += rollout.reward
                    counts[place][1] += 1
    rate = {place: won / number for place, (won, number) in counts.items()}
    return np.array([rate.get(int(step), rate[-1]) for step in audit.step_index])


NO_CRITICS: dict[str, tuple[Callable[[Material, AuditData], np.ndarray], tuple[str, ...]]] = {
    "constant": (lambda _, audit: constant(audit), ("ev", "ev_within", "rho_a")),
    "position": (by_step, ("skill_over_position",)),
    "task_rate": (lambda _, audit: task_rate(audit), ("ev_within", "rho_a")),
}
"""What knows no steps: its values, and conditions that it must fail."""
LABELS_ALONE = ("fit_continuations", False)
"""What is wrong with these labels is not to be mended by states that they do not hold."""
FITTED = {
    # Calibration on true outcomes turns to account what its features say of a task, or its line of the
    # step's number, by chance: skill between rollouts proves nothing. Steps within one it does not know.
    "label-shuffled": Bad(("ev_within", "rho_a"), shuffled, changes=(LABELS_ALONE,)),
    "guided-outcome-trained": Bad(
        ("ece_excess",), lambda labels, _: guided_outcomes(labels), changes=(LABELS_ALONE,)
    ),
    "under-trained": Bad(("converged",), changes=(("max_epochs", 0.25),)),
    "overfitted": Bad(
        ("ece_excess", "skill_over_task_rate"),
        lambda labels, _: of_few_rollouts(labels),
        changes=(
            LABELS_ALONE,
            *(("max_epochs", 60.0), ("evaluations_per_epoch", 1), ("batch_states", 64)),
            *(("patience", 10**6), ("weight_decay", 0.0)),
        ),
        by_heart=True,
    ),
}


def stood_before(settings: CriticReport, audit: AuditData, *, converged: bool, seed: int) -> dict[str, Any]:
    """Returns what the gate says of an audited critic: the verdict, failed conditions in words, figures."""
    measures = measure(audit, num_resamples=settings.bootstrap, seed=seed)
    conditions = gate.judge(
        {"bare": measures},
        converged=converged,
        min_advantage_correlation=settings.min_advantage_correlation,
        max_calibration_excess=settings.max_calibration_excess,
    )
    return {
        "passed": gate.passed(conditions),
        "failed": {c.name: c.reason for c in conditions if c.passed is False},
        **{name: interval_dict(measures[name]) for name in SHOWN},
    }


def rows_of(material: Material) -> list[dict[str, Any]]:
    """Returns a row per critic: the method's, those that are none, those that are fitted wrongly."""
    settings, seed = material.config.critic_report, material.config.run.seed

    def stood(name: str, reasons: Sequence[str], audit: AuditData, converged: bool) -> dict[str, Any]:
        found = stood_before(settings, audit, converged=converged, seed=seed)
        return {"critic": name, "must_fail": list(reasons)} | found

    own = audit_of(material, {name: np.array(of) for name, of in material.values.items()})
    rows = [stood(METHOD, (), own, material.made["converged"])]
    for name, (values, reasons) in NO_CRITICS.items():
        rows.append(stood(name, reasons, replace(own, p=values(material, own)), converged=True))
    for row in rows:
        print_row(row)
    labels, rule, _ = material.labels(METHOD)
    for name, bad in FITTED.items():

        def make(name: str = name, bad: Bad = bad) -> dict[str, Any]:
            given = bad.labels(labels, seed)
            policy, changes = material.folder / "sft" / "policy", dict(bad.changes)
            trainer, calibrator, facts = fitted(
                material, given, rule, policy, changes=changes, by_heart=bad.by_heart
            )
            audit = audit_of(material, values_of(material, trainer, calibrator))
            # By heart there was no stop to wait for: only what it does on unseen tasks is judged.
            converged = facts.pop("converged") or bad.by_heart
            return stood(name, bad.reasons, audit, converged) | {"labels": len(given)} | facts

        said = (settings.model_dump(mode="json"), bad.reasons, bad.changes, bad.by_heart)
        try:
            row = remembered(material.folder / "gate" / f"{name}.json", material.key(name, *said), make)
        except ArtifactError as error:  # too few such labels: its criterion then stays unmet
            print(f"{name:<24} could not be fitted: {error}", flush=True)
            continue
        rows.append(row)
        print_row(row)
    return rows


def print_row(row: dict[str, Any]) -> None:
    """Prints what the gate says of a critic."""
    failed = "; ".join(f"{name}: {reason}" for name, reason in row["failed"].items())
    print(f"{row['critic']:<24} {'PASS' if row['passed'] else 'FAIL'}  {failed}", flush=True)


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the table: a line per critic."""
    lines = ["| critic | gate | fails | " + " | ".join(SHOWN) + " |", "|---|---|---|" + "---|" * len(SHOWN)]
    for row in rows:
        cells = ["-" if row[n]["value"] is None else f"{row[n]['value']:.2f}" for n in SHOWN]
        verdict = "PASS" if row["passed"] else "FAIL"
        lines.append(f"| {row['critic']} | {verdict} | {', '.join(row['failed'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def row_of(results: Any, name: str) -> dict[str, Any]:
    """Returns the row of a critic; StopIteration if it could not be fitted."""
    found: dict[str, Any] = next(row for row in results["rows"] if row["critic"] == name)
    return found


def refused(results: Any, name: str) -> bool:
    """Returns whether the gate refused a critic for each of the reasons that it had to."""
    row = row_of(results, name)
    return not row["passed"] and set(row["must_fail"]) <= set(row["failed"])


CRITERIA: dict[str, Any] = {
    "the method's critic passes here": lambda r: row_of(r, METHOD)["passed"],
    "and in its run, where it is whole": lambda r: r["run_gate"]["passed"],
    "under-trained: explains less than the method's": lambda r: (
        row_of(r, "under-trained")["ev"]["value"] < row_of(r, METHOD)["ev"]["value"]
    ),
    **{
        f"{name}: refused for {' and '.join(reasons)}": lambda r, n=name: refused(r, n)
        for name, reasons in (
            *((name, reasons) for name, (_, reasons) in NO_CRITICS.items()),
            *((name, bad.reasons) for name, bad in FITTED.items()),
        )
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Makes or finishes the run, fits the critics, prints and writes the table; 1 if a criterion fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/phone-l3-tiny.yaml")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that all works; judges nothing"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", dest="settings")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data")
    parser.add_argument(
        "--run", help="folder of the run under the data directory; default quality-seed<seed>"
    )
    parser.add_argument("--results", type=Path, help="default: benchmarks/results/critic_gate.json")
    options = parser.parse_args(argv)
    settings = [*options.settings, f"run.seed={options.seed}"]
    if options.quick:
        options.data_dir = options.data_dir / "quick"  # no figure of it may pass for a result
        settings = [*QUICK, *settings]
    data_dir = options.data_dir.resolve()
    run = options.run or f"quality-seed{options.seed}"
    make_stages(options.config, run, STAGES, settings, data_dir)
    overrides = [*settings, f"run.data_dir={json.dumps(str(data_dir))}"]
    material = Material(load_config(Config, ROOT / options.config, overrides), data_dir / run)
    rows = rows_of(material)
    print(as_markdown(rows))
    results = {
        "machine": machine_facts(),
        "config": options.config,
        "run": run,
        "settings": settings,
        "run_gate": {name: material.gate[name] for name in ("passed", "not_measured", "not_judged")},
        "rows": rows,
    }
    as_committed = not (options.settings or options.run or options.quick) and options.seed == 0
    as_committed &= options.config == parser.get_default("config")
    path = options.results or (RESULTS if as_committed else data_dir) / "critic_gate.json"
    code = conclude(path, results, CRITERIA)
    return 0 if options.quick else code


if __name__ == "__main__":
    sys.exit(main())
