"""The gate before critics that must not pass: some know no steps, others are fitted wrongly on real labels.

    python -m benchmarks.critic_gate            # seeds 0, 1, 2, on the runs of critic_quality
    python -m benchmarks.critic_gate --quick    # minutes: tiny sizes, results beside its run

All are judged on the bare states of the seed's audit, the method's own critic among them. Sibling sets
and probes, which need a critic to be played against, are judged in the run's own gate.json, which must
pass as well. What is fitted is kept, so the same command goes on.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks._critics import audit_of, fitted, values_of
from benchmarks._material import QUICK, Material, material_of
from benchmarks._results import Criteria, Row, Table, measured, remembered
from benchmarks._run import Asked, Benchmark, main
from critics.audit.baselines import constant, task_rate
from critics.audit.data import AuditData
from critics.audit.measures import measure as measures_of
from critics.report import gate
from pipeline.errors import ArtifactError
from pipeline.ids import digest
from pipeline.types import Label

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
    """A critic that is fitted as it must not be: the conditions that it must fail, and what is wrong."""

    reasons: tuple[str, ...]
    labels: Callable[[list[Label], int], list[Label]] = lambda labels, _: labels  # the method's, and a seed
    changes: tuple[tuple[str, Any], ...] = ()  # of its critic section
    by_heart: bool = False  # its last weights are kept and calibrated on what they were fitted on


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


def stood(material: Material, name: str, audit: AuditData, *, converged: bool) -> list[Row]:
    """Returns what the gate says of an audited critic: the verdict, each condition, the figures."""
    measures = measures_of(audit, seed=material.config.run.seed)
    # Values as they were frozen, of all audited states: no level is refitted that a wrong fit got wrong.
    measures |= {"level_bias": measures["bias"]}
    told = material.config.critic.privileged
    conditions = gate.judge({"bare": measures}, converged=converged, privileged=told)
    verdicts = {f"meets {c.name}": bool(c.passed) for c in conditions if isinstance(c.passed, bool)}
    figures = {shown: measures[shown] for shown in SHOWN}
    return measured(name, {"passed": gate.passed(conditions), **verdicts, **figures}, len(audit))


def rows_of_fitted(material: Material, name: str, bad: Bad, labels: list[Label], rule: str) -> list[Row]:
    """Returns the rows of a critic that is fitted as it must not be."""
    given = bad.labels(labels, material.config.run.seed)
    policy = material.folder / "sft" / "policy"
    trainer, calibrator, facts = fitted(
        material, given, rule, policy, changes=dict(bad.changes), by_heart=bad.by_heart
    )
    told = material.config.critic.privileged
    audit = audit_of(material, values_of(material, trainer, calibrator, told))
    # By heart there was no stop to wait for: only what it does on unseen tasks is judged.
    return stood(material, name, audit, converged=facts["converged"] or bad.by_heart)


def measure(asked: Asked) -> list[Row]:
    """Returns the rows of the method's critic, of those that know no steps, and of those fitted wrongly."""
    material = material_of(asked)
    own = audit_of(material, {name: np.array(of) for name, of in material.values.items()})
    rows = measured("whole run", {"passed": material.gate["passed"]})
    rows += stood(material, METHOD, own, converged=material.made["converged"])
    for name, (values, _) in NO_CRITICS.items():
        rows += stood(material, name, replace(own, p=values(material, own)), converged=True)
    labels, rule, _ = material.labels(METHOD)
    for name, bad in FITTED.items():
        key = material.key(name, bad.reasons, bad.changes, bad.by_heart)
        path = material.folder / "gate" / f"{name}.json"
        try:
            rows += remembered(
                path,
                key,
                lambda n=name, b=bad: rows_of_fitted(material, n, b, labels, rule),  # type: ignore[misc]
            )
        except ArtifactError as error:  # too few such labels: its criterion then stays unmet
            print(f"{name:<24} could not be fitted: {error}", flush=True)
    return rows


def refused(name: str, reasons: Sequence[str]) -> Callable[[Table], bool]:
    """Returns the criterion that the gate refused a critic for each of the reasons."""
    return lambda t: t(name, "passed") == 0 and all(t(name, f"meets {reason}") == 0 for reason in reasons)


MUST_FAIL = {name: reasons for name, (_, reasons) in NO_CRITICS.items()} | {
    name: bad.reasons for name, bad in FITTED.items()
}
CRITERIA: Criteria = {
    "the method's critic passes here": lambda t: t(METHOD, "passed") == 1,
    "and in its run, where it is whole": lambda t: t("whole run", "passed") == 1,
    "under-trained: explains less than the method's": lambda t: t("under-trained", "ev") < t(METHOD, "ev"),
    **{f"{name}: refused for {' and '.join(why)}": refused(name, why) for name, why in MUST_FAIL.items()},
}
BENCHMARK = Benchmark("critic_gate", __doc__, measure, CRITERIA, seeds=(0, 1, 2), quick=QUICK)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
