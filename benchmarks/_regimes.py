"""The arms of a shipped comparison, one seed at a time: configs/comparison-<regime>.yaml, looks as rows."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import yaml

from benchmarks._comparisons import Comparison, compare, critic_rows
from benchmarks._results import Row, measured
from benchmarks._run import ROOT, Asked, Benchmark
from pipeline.runs import ARMS
from pipeline.statistics import ClusterBootstrap
from stages.wiring.arm_costs import COSTS


def benchmark_of(regime: str, doc: str, seeds: tuple[int, ...] = (0, 1, 2, 3, 4)) -> Benchmark:
    """Returns the benchmark of a regime: five seeds, with all arms or those that `--arms` names."""
    return Benchmark(regime, doc, measure_of(regime), seeds=seeds, options={"arms": ""})


def with_arms(benchmark: Benchmark, name: str, doc: str, arms: str) -> Benchmark:
    """Returns a regime's benchmark under another name, with other arms on the same seeds."""
    measure = measure_of(benchmark.name, name.replace("_", "-"))
    return replace(benchmark, name=name, doc=doc, measure=measure, options={"arms": arms})


def config_of(regime: str) -> Any:
    """Returns the configuration of a regime, as its YAML has it."""
    return yaml.safe_load((ROOT / "configs" / f"comparison-{regime}.yaml").read_text("utf-8"))


def comparison_of(regime: str) -> Any:
    """Returns the section `comparison` of a regime's configuration."""
    return config_of(regime)["comparison"]


def measure_of(regime: str, run: str = "") -> Callable[[Asked], Iterator[Row]]:
    """Returns what makes a seed's runs, named as the regime or `run`, and yields its looks."""

    def measure(asked: Asked) -> Iterator[Row]:
        return looks_of(comparison_made(asked_of(regime, asked), f"{run or regime}-seed{asked.seed}", asked))

    return measure


def asked_of(regime: str, asked: Asked) -> Any:
    """Returns the configuration of a regime with the arms that are asked for."""
    config = config_of(regime)
    if names := asked.options.arms:
        comparison, asked_for = config["comparison"], names.split(",")
        if unknown := sorted({*asked_for} - {*comparison["arms"]}):
            raise SystemExit(f"--arms has {unknown}; allowed: {', '.join(comparison['arms'])}")
        comparison["arms"] = {name: comparison["arms"][name] for name in asked_for}
        if comparison["method"] not in asked_for:
            comparison["method"] = asked_for[0]
    return config


def comparison_made(config: Any, run: str, asked: Asked) -> Comparison:
    """Makes or finishes the comparison of a configuration's arms on the seed that is asked for alone.

    With other arms than before it is another comparison; the runs that are there are used.
    """
    config["comparison"]["seeds"] = [asked.seed]
    path = asked.data_dir / f"{run}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    settings = [setting for setting in asked.settings if not setting.startswith("run.seed=")]
    return compare(str(path), run, [*settings, "--fresh"], asked)


def looks_of(comparison: Comparison) -> Iterator[Row]:
    """Yields success of each arm at each look and what it had paid, its critic, and its stages' rollouts."""
    looks = comparison.table("comparison")
    for look in looks:
        yield from rows_of_look(look)
    for arm, seed in sorted({(look["arm"], look["seed"]) for look in looks}):
        yield from critic_rows(comparison.run_dir / ARMS / f"{arm}-seed{seed}", arm)
    for row in comparison.table("spending"):
        yield from measured(row["arm"], {f"rollouts of {row['stage']}": row["rollouts"]})


def rows_of_look(look: dict[str, Any]) -> list[Row]:
    """Returns success at a look, with its interval over clusters of tasks, and all costs before it."""
    success = ClusterBootstrap(look["clusters"]).mean(np.array(look["rewards"]))
    place = look["iteration"]
    figures = {f"{cost} at {place}": look[cost] for cost in COSTS}
    return measured(look["arm"], {f"success at {place}": success} | figures, len(look["task_ids"]))
