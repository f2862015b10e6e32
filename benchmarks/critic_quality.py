"""How good critics get, and how that moves with label budget, kind of target and size of the trunk.

    python -m benchmarks.critic_quality                   # seeds 0, 1, 2: hours each on two cores
    python -m benchmarks.critic_quality --quick           # minutes: tiny sizes, results beside its runs

For each seed the stages up to critic_report are made once, in `<data dir>/quality-seed<k>`. `soft` is the
critic that they made. Every other variant is fitted in this process on the same rollouts and
continuations (or a share of them), and all are judged on the same audit. Figures of a variant are kept in
the seed's folder, so the same command goes on.

Variants: `soft` (the method), `soft@25`, `soft@50` (share of the continuations' tokens), `labels-alone`
(without critic.fit_continuations, as are the rules), one for each target rule, and `trunk:layers<k>`, the
policy's first k layers as the trunk. On request `kappa<k>`, with so many pseudo-counts, `told:features` and
`told:words`, with privileged inputs. A rule is fitted without continuations; those of validating companies,
which decide when any fit ends, are its label tokens.

`soft / ...` has the method by level and by split.
"""

import math
import sys
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks._critics import audit_of, fitted, parameters_of, values_of, with_layers
from benchmarks._material import QUICK, Material, material_of
from benchmarks._results import Criteria, Row, at_least, measured, remembered, surely_positive
from benchmarks._run import Asked, Benchmark, main
from critics.audit.data import AuditData, AuditRollout
from critics.audit.first_error import first_error
from critics.audit.measures import measure as measures_of
from critics.labels.named_targets import RULES
from critics.privileged import Kind

TOLD: dict[str, Kind] = {"told:features": "features", "told:words": "words"}
VARIANTS = ("soft", "soft@25", "soft@50", "labels-alone", *RULES, "trunk:layers1", "trunk:layers2")
QUICK_VARIANTS = ("soft", "soft@50", "kappa2", "monte_carlo", "td", "trunk:layers1")
SHOWN = ("ev", "ev_within", "rho_a", "ece_excess", "skill_over_task_rate")
AIMS = {"ev": 0.7, "ev_within": 0.5, "rho_a": 0.6}
MAX_EXCESS = 0.02
CRITERIA: Criteria = {
    "explained variance within rollouts above 0, interval": surely_positive("soft", "ev_within"),
    "advantage correlation above 0, interval": surely_positive("soft", "rho_a"),
    **{f"aim: {name} >= {least}": at_least(least, "soft", name) for name, least in AIMS.items()},
    "aim: calibration error within .02 of its floor": lambda t: t("soft", "ece_excess") <= MAX_EXCESS,
    "first errors: located better than by a constant value, against solver and events": lambda t: all(
        t("soft", f"first error {who}, F1") > t("soft", f"first error {who}, F1 of a constant")
        for who in ("solver", "events")
    ),
}


def judged(material: Material, variant: str, values: dict[str, np.ndarray]) -> list[Row]:
    """Returns the figures of a critic on the seed's audit, bare states."""
    config, audit = material.config, audit_of(material, values)
    found = measures_of(audit, seed=config.run.seed)
    rows = measured(variant, {name: found[name] for name in SHOWN}, len(audit))
    for who, rollouts in (("events", audit.rollouts), ("solver", with_fatal_steps(audit))):
        located: dict[str, Any] = first_error(rollouts)
        rows += measured(variant, {f"first error {who}": located["exact"]}, located["num_wrong"])
        if variant == "soft":
            constant: dict[str, Any] = first_error(
                [replace(r, values=(0.5,) * len(r.values)) for r in rollouts]
            )
            f1 = {"F1": located["f1"].value, "F1 of a constant": constant["f1"].value}
            rows += measured(variant, {f"first error {who}, {name}": x for name, x in f1.items()})
    return rows


def by_part(material: Material, audit: AuditData) -> list[Row]:
    """Returns the method's figures by level and by split."""
    seed = material.config.run.seed
    masks = {f"level {level}": audit.level == level for level in np.unique(audit.level)}
    masks |= {str(split): audit.split == split for split in np.unique(audit.split)}
    rows = []
    for name, mask in masks.items():
        part = audit.where(mask)
        found = measures_of(part, seed=seed)
        rows += measured(f"soft / {name}", {x: found[x] for x in (*AIMS, "ece_excess")}, len(part))
    return rows


def with_fatal_steps(audit: AuditData) -> list[AuditRollout]:
    """Returns the audited rollouts with one `wrong` step at most: the solver's first fatal one."""
    optimal: dict[str, dict[int, float]] = defaultdict(dict)
    for name, step, value in zip(audit.rollout_id, audit.step_index, audit.v_star, strict=True):
        optimal[str(name)][int(step)] = float(value)
    marked = []
    for rollout in audit.rollouts:
        known, T = optimal[rollout.rollout_id], len(rollout.values)
        if any(i not in known or math.isnan(known[i]) for i in range(T)):
            continue
        along = [*(known[i] for i in range(T)), rollout.reward or 0.0]
        fatal = next((i for i in range(T) if along[i + 1] < along[i]), None)
        marked.append(replace(rollout, statuses=tuple("wrong" if i == fatal else "ok" for i in range(T))))
    return marked


def rows_of(material: Material, variant: str) -> list[Row]:
    """Returns a variant's figures."""
    trunk = material.folder / "sft" / "policy"
    if variant.startswith("trunk:layers"):
        trunk = with_layers(trunk, int(variant.removeprefix("trunk:layers")), material.folder / "quality")
    of_labels = "soft" if variant.startswith("trunk:") or variant in TOLD else variant
    labels, rule, tokens = material.labels(of_labels)
    if variant == "soft" and material.config.labels.target == "soft":
        converged = material.made["converged"]
        values = {name: np.array(of) for name, of in material.values.items()}
    else:
        changes: dict[str, Any] = {"fit_continuations": False} if variant == "labels-alone" else {}
        changes["privileged"] = told = TOLD.get(variant, material.config.critic.privileged)
        trainer, calibrator, facts = fitted(material, labels, rule, trunk, changes=changes)
        converged, values = facts["converged"], values_of(material, trainer, calibrator, told)
    rows = measured(variant, {"label tokens": tokens, "trunk": parameters_of(trunk), "converged": converged})
    rows += judged(material, variant, values)
    if variant == "soft":
        rows += by_part(material, audit_of(material, values))
    return rows


def measure(asked: Asked) -> list[Row]:
    """Returns the rows of every variant of a seed; those that a former call finished are read."""
    material = material_of(asked)
    rows = []
    for variant in asked.options.variants.split() or (QUICK_VARIANTS if asked.is_quick else VARIANTS):
        path = material.folder / "quality" / f"{variant.replace(':', '-')}.json"
        rows += remembered(path, material.key(variant), lambda v=variant: rows_of(material, v))  # type: ignore[misc]
    return rows


BENCHMARK = Benchmark(
    "critic_quality", __doc__, measure, CRITERIA, seeds=(0, 1, 2), quick=QUICK, options={"variants": ""}
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
