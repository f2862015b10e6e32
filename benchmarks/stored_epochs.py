"""What a regime's stored phase gains with its epochs and with twice as many, in its no_critic arm.

    python -m benchmarks.stored_epochs --seeds 103 104 105 106 107 --regime dense --results benchmarks/results

Success right after the phase, on seeds that no comparison reports; the rollouts are the same. A quarter of an
hour of one core a seed where success is dense, half an hour where it is sparse, most of it sft.
"""

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks._regimes import comparison_made, config_of, rows_of_look
from benchmarks._results import Row
from benchmarks._run import Asked, Benchmark, main


def config_with_epochs(regime: str) -> Any:
    """Returns the regime's configuration with an arm for each number of epochs."""
    config = config_of(regime)
    arm, epochs = config["comparison"]["arms"]["no_critic"], config["stored"]["max_epochs"]
    config["comparison"]["arms"] = {
        f"epochs_{n}": arm | {"stored.max_epochs": n, "actor.num_iterations": 1} for n in (epochs, 2 * epochs)
    }
    config["comparison"]["method"] = f"epochs_{epochs}"
    return config


def measure(asked: Asked) -> Iterator[Row]:
    """Makes a seed's arms; yields success after the stored phase and what it had paid."""
    regime = asked.options.regime
    found = comparison_made(config_with_epochs(regime), f"{regime}-epochs-seed{asked.seed}", asked)
    for look in found.table("comparison"):
        if look["iteration"] == 0:
            yield from rows_of_look(look | {"arm": f"{regime}, {look['arm']}"})


BENCHMARK = Benchmark(
    "stored_epochs", __doc__, measure, seeds=(103, 104, 105, 106, 107), options={"regime": "dense"}
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
