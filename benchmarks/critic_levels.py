"""How good a critic is at each level of the phone, and what it gains from verdicts on earlier steps.

    python -m benchmarks.critic_levels --results benchmarks/results     # seeds 0, 1, 2: hours of a core each

Runs of configs/phone-l3-tiny.yaml at a third of its budget, audited as that has it, on the policies that
benchmarks/long.py starts from. Three critics are fitted to the same labels and judged on the same audit of
bare states:

    none        the method's: it reads the dialogue alone
    features    its calibrator is told counts of verdicts on earlier steps
    words       it reads those verdicts among the steps

Beside them `errors so far alone`, a regression on those counts, and `trees on what is visible`, both fitted
on other companies' audited states; `features, trees`, which are told what `features` is and take the place of
its calibrator, fitted on the same states; `4 continuations`: their mean, judged by the other four.
`over none`: what a critic has in EV_within over `none`, paired by state.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction import DictVectorizer

from benchmarks._critics import audit_of, fitted, values_of
from benchmarks._material import CONFIG, Material, material_of
from benchmarks._results import Criteria, Row, at_least, measured, remembered
from benchmarks._run import Asked, Benchmark, main
from critics.audit.baselines import BASELINES, split_counts
from critics.audit.data import AuditData
from critics.audit.measures import gained_within
from critics.audit.measures import measure as measures_of
from critics.audit.reference_critics import VISIBLE_ALONE, reference_critics
from critics.fit.data import fit_data
from critics.frozen.critic import load, read_value_logits
from critics.privileged import Kind, counts_of
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
        "features, trees": with_trees(material),
        "4 continuations": split_counts(none, 4, seed),
    }
    for name, audit in {"none": none, **references}.items():
        yield from by_level(name, audit, none, seed)
    for told in TOLD:
        path = material.folder / "levels" / f"{told}.json"
        yield from remembered(path, material.key("levels", told), partial(rows_of, material, told, none))


def with_trees(material: Material) -> AuditData:
    """Returns the audit with values of trees on the critic's logit, the step and the verdicts before it.

    They are fitted on the outcomes that the calibrator is fitted on.
    """
    labels, rule, _ = material.labels("soft")
    data = fit_data(labels, material.rollouts, material.tasks, material.part_of(), rule=rule)
    states, critic = data.calibration, load(material.folder / "critic" / "critic")
    positions = [states.position[states.row == row] for row in range(len(states.rows))]
    z = read_value_logits(critic.model, states.rows, positions, critic.micro_batch_tokens)
    counts = DictVectorizer(sparse=False)
    told = counts.fit_transform(states.told)
    trees = HistGradientBoostingClassifier(  # as those of the reference
        learning_rate=0.1, max_iter=60, max_leaf_nodes=12, min_samples_leaf=40, random_state=0
    )
    features = np.column_stack([np.concatenate(z), states.step_index, told])
    trees.fit(features, states.num_success > 0)
    audited = [r for r in material.audited if r.rollout_id in material.values]
    values = {}
    for rollout, logits in zip(audited, critic.value_logits(audited), strict=True):
        steps, before = [step.step_index for step in rollout.steps], counts.transform(counts_of(rollout))
        values[rollout.rollout_id] = trees.predict_proba(np.column_stack([logits, steps, before]))[:, 1]
    return audit_of(material, values)


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
