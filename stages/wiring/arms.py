"""The runs of a comparison: an arm is nothing but settings over the chain, a run is an arm with a seed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pipeline.artifacts.start import Stage, identity_of
from pipeline.config import config_of
from pipeline.errors import ConfigError
from pipeline.ids import digest
from pipeline.runs import ROUND_CHAIN
from stages.settings import Config
from stages.wiring.hands import num_processes


@dataclass(frozen=True, slots=True)
class ArmRun:
    """An ordinary run, up to its actor, in a folder that holds the runs of a comparison."""

    arm: str
    seed: int
    config: Config
    chain: tuple[str, ...]  # the stages that its actor needs, in order, and the actor

    @property
    def name(self) -> str:
        """Of the run's folder."""
        return self.config.run.name

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self.config.run.data_dir) / self.name


def num_side_by_side(config: Config) -> int:
    """Returns how many runs work at once: on a CPU one for every core, else one, which may take all GPUs."""
    on_cpu = config.engine.kind != "vllm" and not config.hardware.num_gpus
    return num_processes() if on_cpu else 1


def runs_of(config: Config, home: Path) -> list[ArmRun]:
    """Returns the runs of a comparison, seed by seed; raises ConfigError for an arm that cannot be compared.

    Where several work at once each has one thread: two runs of one thread take less time than one of two.
    """
    settings = config.comparison
    if not settings.arms:
        raise ConfigError(
            "comparison.arms names no arm. Next: a configuration that does, such as "
            "configs/comparison-sparse.yaml"
        )
    alone = num_side_by_side(config) == 1
    one_thread = [] if alone else ["engine.replicas=1", "training.threads=1"]
    arms = sorted(settings.arms)
    return [_run_of(config, home, arm, seed, one_thread) for seed in settings.seeds for arm in arms]


def _run_of(config: Config, home: Path, arm: str, seed: int, given: list[str]) -> ArmRun:
    source, data = f"comparison.arms.{arm}", config.model_dump(mode="json", exclude={"comparison"})
    data["run"] |= {"name": f"{arm}-seed{seed}", "seed": seed, "data_dir": str(home)}
    changes = [f"{key}={json.dumps(value)}" for key, value in config.comparison.arms[arm].items()]
    plain = config_of(Config, data, given, source)
    made = config_of(Config, plain.model_dump(mode="json"), changes, source)
    if any(getattr(made, name) != getattr(plain, name) for name in ("run", "tasks", "comparison")) or (
        made.actor.evaluate_tasks != plain.actor.evaluate_tasks
    ):
        raise ConfigError(
            f"{source} changes what all arms share: run, tasks, comparison or actor.evaluate_tasks. Next: "
            "set it for all of them, outside of the arms"
        )
    return ArmRun(arm, seed, made, chain_of(made, "actor"))


def stage_of(name: str) -> Stage[Any, Any]:
    """Returns what a stage's entry file declares."""
    stage: Stage[Any, Any] = resolve_name(f"stages.{name}:STAGE")
    return stage


def chain_of(config: Config, *last: str) -> tuple[str, ...]:
    """Returns some stages of a configuration, such as its actor, and all that they need, in order."""
    needed, waiting = set[str](), list(last)
    while waiting:
        needed.add(name := waiting.pop())
        waiting += stage_of(name).inputs(config)
    return tuple(name for name in ROUND_CHAIN if name in needed)


def made_once(runs: list[ArmRun]) -> Iterator[tuple[ArmRun, str]]:
    """Yields (run, stage) for all that must be made: what several runs share is the first one's."""
    seen = set[str]()
    for run in runs:
        keys = dict[str, str]()
        for name in run.chain:
            stage = stage_of(name)
            own = identity_of(stage, run.config, {})[0]["stage_key"]
            keys[name] = digest(own, [keys[upstream] for upstream in stage.inputs(run.config)])
            if keys[name] not in seen:
                seen.add(keys[name])
                yield run, name
