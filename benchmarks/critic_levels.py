"""How good a critic is at each level of the phone, and what it gains from verdicts on earlier steps.

    python -m benchmarks.critic_levels --results benchmarks/results     # seeds 0, 1, 2: hours of a core each

Runs of configs/phone-l3-tiny.yaml at a third of its budget, audited as that has it, on the policies that
benchmarks/long.py starts from. Three critics are fitted to the same labels and judged on the same audit of
bare states:

    none        the method's: it reads the dialogue alone
    features    its calibrator is told counts of verdicts on earlier steps
    words       it reads those verdicts among the steps

Beside them `errors so far alone`, a regression on those counts, and `trees on what is visible`, both fitted
on other companies' audited states. `over none`: what a critic has in EV_within over `none`, paired by state.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks._critics import audit_of, fitted, values_of
from benchmarks._material import CONFIG, Material, material_of
from benchmarks._results import Criteria, Row, at_least, measured, remembered
from benchmarks._run import Asked, Benchmark, main
from critics.audit.baselines import BASELINES
from critics.audit.data import AuditData
from critics.audit.measures import gained_within
from critics.audit.measures import measure as measures_of
from critics.audit.reference_critics import VISIBLE_ALONE, reference_critics
from critics.privileged import Kind
from pipeline.statistics import ClusterBootstrap

SETTINGS = (
    "rollouts.num_tasks=1500",
    "labels={target: soft, max_states: 2400, num_continuations: 2, guided_share: 0}",
    # With 100 tasks and four continuations of a state nothing could be told at level 3.
    "critic_report={tasks_per_split: 200, draws: 4, num_continuations: 8, guided: false, fit_tasks: 0, "
    "sibling_sets: 0, probe_rollouts: 0}",
)
TOLD: tuple[Kind, ...] = ("features", "words")
SHOWN = ("ev", "ev_within", "rho_a", "ece_excess")
HARDEST = 3
CRITERIA: Criteria = {
    f"aim: at level {HARDEST}, {name} >= {least} with {told}": at_least(
        least, f"{told}, level {HARDEST}", name
    )
    for told in TOLD
    for name, least in {"ev_within": 0.45, "rho_a": 0.6}.items()
}


def measure(asked: Asked) -> Iterator[Row]:
    """Yields each critic's figures and those of its references by level; a finished fit is read."""
    material = material_of(asked, CONFIG, "long-base", SETTINGS)
    none = audit_of(material, {name: np.array(of) for name, of in material.values.items()})
    seed = material.config.run.seed
    references = {
        "errors so far alone": replace(none, p=BASELINES["errors_so_far"](none)),
        "trees on what is visible": reference_critics(none, seed, "words")[VISIBLE_ALONE],
    }
    for name, audit in {"none": none, **references}.items():
        yield from by_level(name, audit, none, seed)
    for told in TOLD:
        path = material.folder / "levels" / f"{told}.json"
        yield from remembered(path, material.key("levels", told), partial(rows_of, material, told, none))


def rows_of(material: Material, told: Kind, none: AuditData) -> list[Row]:
    """Returns the figures of a critic that is told so much."""
    labels, rule, _ = material.labels("soft")
    policy = material.folder / "sft" / "policy"
    trainer, calibrator, facts = fitted(material, labels, rule, policy, changes={"privileged": told})
    audit = audit_of(material, values_of(material, trainer, calibrator, told))
    rows = by_level(told, audit, none, material.config.run.seed)
    return rows + measured(told, {"converged": facts["converged"]})


def by_level(name: str, audit: AuditData, none: AuditData, seed: int) -> list[Row]:
    """Returns the figures of an audit at each level, and its EV_within over that of the method's critic."""
    rows = []
    for level in np.unique(audit.level):
        part, beside = (each.where(each.level == level) for each in (audit, none))
        found = measures_of(part, seed=seed)
        gain = gained_within(part, beside.p, ClusterBootstrap(part.cluster, seed=seed))
        figures = {shown: found[shown] for shown in SHOWN} | {"over none": gain}
        rows += measured(f"{name}, level {level}", figures, len(part))
    return rows


BENCHMARK = Benchmark("critic_levels", __doc__, measure, CRITERIA, seeds=(0, 1, 2))

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
