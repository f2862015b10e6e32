"""What all runs of a comparison sample, train and store at most: for `vdapo plan`."""

from collections.abc import Callable
from pathlib import Path

from pipeline.runs import MAIN_CHAIN
from stages.settings import Config
from stages.wiring.arms import made_once, runs_of
from stages.wiring.plan_work import work_of


def work_of_comparison(
    config: Config, parameters: Callable[[Config], tuple[int, int]]
) -> dict[str, tuple[float, ...]]:
    """Returns stage -> figures of all runs of a comparison, shared stages once.

    `parameters` returns those of a configuration's policy and critic.
    """
    total: dict[str, tuple[float, ...]] = dict.fromkeys((*MAIN_CHAIN[:-1], "refresh", "looks"), (0.0,) * 4)
    for run, stage in made_once(runs_of(config, Path())):
        for work in work_of(run.config, *parameters(run.config)):
            if work.stage == stage or (stage == "actor" and work.stage in ("refresh", "looks")):
                total[work.stage] = tuple(map(sum, zip(total[work.stage], work.figures, strict=True)))
    return {stage: figures for stage, figures in total.items() if any(figures)}
