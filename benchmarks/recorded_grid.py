"""What the arms of `benchmarks.recorded` were tuned on: a seed that it does not report.

    python -m benchmarks.recorded_grid              # seed 100, after `benchmarks.recorded --seeds 100`

Each line is an arm with other settings, on the same recorder, sessions, critic and pairs.
"""

import sys
from collections.abc import Iterator

from benchmarks._material import linked
from benchmarks._results import Row, measured
from benchmarks._run import Asked, Benchmark, main, make_stages
from benchmarks.recorded import (
    ARMS,
    CONFIG,
    DPO,
    SHARED,
    STORED,
    figures_of,
    first_tries,
    held_out,
    recorded,
    shared,
)
from pipeline.artifacts.artifact import Artifact

GRID: dict[str, dict[str, tuple[str, ...]]] = {
    STORED: {
        "3e-4": ("stored.learning_rate=3e-4",),
        "1e-4": ("stored.learning_rate=1e-4",),
    },
    DPO: {
        "1e-5": ("dpo.learning_rate=1e-5",),
        "3e-6": ("dpo.learning_rate=3e-6",),
    },
}
"""Arm -> line -> settings."""


def measure(asked: Asked) -> Iterator[Row]:
    """Yields success and gain of every line."""
    recorder, sessions = recorded(asked)
    config, tasks = held_out(asked, recorder)
    before = first_tries(config, recorder / "sft" / "policy", tasks)
    for arm, lines in GRID.items():
        *earlier, last = ARMS[arm][0]
        run = f"recorded-seed{asked.seed}-{last}"
        for number, (line, own) in enumerate(lines.items()):
            folder = linked(asked.data_dir, run, str(number), (*SHARED, *earlier))
            settings = [*shared(asked, recorder, sessions), *ARMS[arm][1], *own]
            make_stages(CONFIG, folder.name, [last], settings, asked.data_dir)
            tries = first_tries(config, folder / last / "policy", tasks)
            updates = Artifact.open(folder, last).report["updates"]
            yield from measured(
                f"{arm}: {line}", figures_of(tries, before, tasks) | {"updates": updates}, len(tries)
            )


BENCHMARK = Benchmark("recorded_grid", __doc__, measure, seeds=(100,))

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
