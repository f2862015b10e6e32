"""What all runs of a comparison sample, train and store at most: for `vdapo plan`."""

from collections.abc import Callable
from pathlib import Path

from pipeline.cli.runs import MAIN_CHAIN
from stages.settings import Config
from stages.wiring.arms import made_once, runs_of
from stages.wiring.plan_work import work_of


def work_of_comparison(
    config: Config, parameters: Callable[[Config], tuple[int, int]]
) -> dict[str, tuple[float, ...]]:
    """Returns stage -> figures of all runs of a comparison, shared stages once, and of its looks.

    `parameters` returns those of a configuration's policy and critic.
    """
    runs = runs_of(config, Path())
    total: dict[str, tuple[float, ...]] = dict.fromkeys((*MAIN_CHAIN[:-1], "refresh", "looks"), (0.0,) * 4)
    for run, stage in made_once(runs):
        for work in work_of(run.config, *parameters(run.config)):
            if work.stage == stage or (work.stage, stage) == ("refresh", "actor"):
                total[work.stage] = tuple(map(sum, zip(total[work.stage], work.figures, strict=True)))
    actors = [run.config.actor for run in runs]
    looks = sum(a.evaluate_tasks * (1 + -(-a.num_iterations // a.evaluate_every)) for a in actors)
    total["looks"] = looks, looks * config.sampling.max_response_tokens, 0, 0  # of which rewards are kept
    return {stage: figures for stage, figures in total.items() if any(figures)}
