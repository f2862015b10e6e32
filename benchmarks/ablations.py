"""Three ablations of the critic, one factor at a time, where success is dense.

    python -m benchmarks.ablations --results benchmarks/results     # seeds 0 to 4

benchmarks/sparse_ablations.py has them where it is sparse.

A regime's run is that of configs/comparison-<regime>.yaml up to critic_report, with continuations of some
states besides, which decide when each fit ends. `method` is the comparison's critic but for that. A variant
is fitted on the same rollouts, differs in one thing, and is judged on the same audit of bare states:

    size         the trunk: the policy's first one or two layers in place of all four
    epochs       one or three at most in place of twelve
    share        of stage 1's tasks a tenth or a half to fit to, in place of .27: what an actor without a
                 stored phase would pay for; the method's validating tasks validate
    granularity  what labels know of located errors: nothing, that there was one, which one. Soft targets
                 with two pseudo-counts of the recovery model (labels.granularity), in place of outcomes at
                 every state, which know nothing either

`over the method`: what a variant has in EV_within over `method`, paired by state.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks._critics import audit_of, fitted, parameters_of, values_of, with_layers
from benchmarks._material import QUICK, Material, material_of
from benchmarks._results import Row, measured, remembered
from benchmarks._run import Asked, Benchmark, main
from critics.audit.measures import gained_within
from critics.audit.measures import measure as measures_of
from critics.labels.soft_targets import Granularity
from pipeline.statistics import ClusterBootstrap

CONTINUED = (
    "labels={num_continuations: 2, max_states: 1000, guided_share: 0}",
    "critic.fit_continuations=false",  # none is in the comparison
    "critic_report.tasks_per_split=120",  # the sparse comparison has 30, to save rollouts
)
OVER_METHOD = "over the method"
SHOWN = ("ev", "ev_within", "rho_a", "ece_excess")


@dataclass(frozen=True)
class Variant:
    """What a critic has in place of the method's."""

    layers: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings of the section critic
    granularity: Granularity | None = None


VARIANTS: Mapping[str, Variant] = {
    "method": Variant(),
    "size: 1 layer": Variant(layers=1),
    "size: 2 layers": Variant(layers=2),
    "epochs: 1": Variant(changes={"max_epochs": 1.0}),
    "epochs: 3": Variant(changes={"max_epochs": 3.0}),
    "share: .10": Variant(changes={"fit_share": 0.1}),
    "share: .50": Variant(changes={"fit_share": 0.5}),
    "granularity: binary": Variant(granularity="binary"),
    "granularity: step": Variant(granularity="step"),
    "granularity: detailed": Variant(granularity="detailed"),
}


def rows_of(material: Material, regime: str, name: str, variant: Variant) -> list[Row]:
    """Returns the figures of a variant's critic."""
    policy = material.folder / "sft" / "policy"
    trunk = with_layers(policy, variant.layers, material.folder / "ablations") if variant.layers else policy
    made = {name: np.array(of) for name, of in material.values.items()}
    if name == "method":
        values, converged = made, material.made["converged"]
    else:
        source = "kappa2" if variant.granularity else material.config.labels.target
        labels, rule, _ = material.labels(source, variant.granularity)
        trainer, calibrator, facts = fitted(material, labels, rule, trunk, changes=variant.changes)
        values, converged = values_of(material, trainer, calibrator, "none"), facts["converged"]
    audit, method = audit_of(material, values), audit_of(material, made)
    seed = material.config.run.seed
    found = measures_of(audit, seed=seed)
    gain = gained_within(audit, method.p, ClusterBootstrap(audit.cluster, seed=seed))
    figures = {shown: found[shown] for shown in SHOWN} | {OVER_METHOD: gain}
    return measured(
        f"{regime}, {name}", figures | {"trunk": parameters_of(trunk), "converged": converged}, len(audit)
    )


def measure(asked: Asked) -> list[Row]:
    """Returns the rows of every variant in each regime asked for; what a former call finished is read."""
    rows = []
    for regime in asked.options.regimes.split():
        config = f"configs/comparison-{regime}.yaml"
        material = material_of(asked, config, f"ablations-{regime}", CONTINUED)
        for name, variant in VARIANTS.items():
            path = material.folder / "ablations" / f"{name.replace(': ', '-')}.json"
            make = partial(rows_of, material, regime, name, variant)
            rows += remembered(path, material.key(repr(variant)), make)
            asked.keep(rows)
    return rows


BENCHMARK = Benchmark(
    "ablations",
    __doc__,
    measure,
    seeds=(0, 1, 2, 3, 4),
    quick=QUICK,
    options={"regimes": "dense"},
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
