"""Where success is sparse: the arms of configs/comparison-sparse.yaml, one seed at a time.

    python -m benchmarks.sparse --seeds 0                                    # every arm
    python -m benchmarks.sparse --seeds 0 --arms v_dapo,no_critic,decoupled_clip --results benchmarks/results

A seed with these three arms takes some fifty minutes of one core, with all of them two hours; a call that
was stopped goes on. `make comparison CONFIG=configs/comparison-sparse.yaml` makes all seeds in one go, with
tests over seeds and tasks; seeds made apart have the same runs, and docs/results.md draws its intervals over
seeds alone.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks._results import Row, measured
from benchmarks._run import ROOT, Asked, Benchmark, main, make_stages
from pipeline.artifacts.artifact import Artifact
from pipeline.statistics import ClusterBootstrap

CONFIG = "configs/comparison-sparse.yaml"


def chosen_arms(asked: Asked) -> Path:
    """Returns a copy of the configuration with this seed alone, and the arms that are asked for."""
    config = yaml.safe_load((ROOT / CONFIG).read_text("utf-8"))
    comparison = config["comparison"]
    names = asked.options.arms.split(",") if asked.options.arms else list(comparison["arms"])
    comparison["arms"] = {name: comparison["arms"][name] for name in names}
    comparison["seeds"] = [asked.seed]
    path = asked.data_dir / f"sparse-seed{asked.seed}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    return path


def measure(asked: Asked) -> Iterator[Row]:
    """Yields the rows of a seed: success of each arm at each look, and what had been paid until then."""
    path, run = chosen_arms(asked), f"sparse-seed{asked.seed}"
    settings = [setting for setting in asked.settings if not setting.startswith("run.seed=")]
    make_stages(str(path), run, ("comparison",), settings, asked.data_dir)
    found = Artifact.open(asked.data_dir / run, "comparison")
    for look in found.table("comparison").to_pylist():
        yield from rows_of_look(look)
    for row in found.table("spending").to_pylist():
        yield from measured(row["arm"], {f"rollouts of {row['stage']}": row["rollouts"]})


def rows_of_look(look: dict[str, Any]) -> list[Row]:
    """Returns success at a look, with its interval over clusters of tasks, and all costs before it."""
    success = ClusterBootstrap(look["clusters"]).mean(np.array(look["rewards"]))
    place = look["iteration"]
    figures = {f"{cost} at {place}": look[cost] for cost in ("rollouts", "tokens", "seconds")}
    return measured(look["arm"], {f"success at {place}": success} | figures, len(look["task_ids"]))


BENCHMARK = Benchmark("sparse", __doc__, measure, seeds=(0, 1, 2, 3, 4), options={"arms": ""})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
