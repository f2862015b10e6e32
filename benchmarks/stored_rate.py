"""What a stored phase gains when its rate falls to nothing, in a regime's no_critic arm.

    python -m benchmarks.stored_rate --seeds 102 --regime dense --results benchmarks/results
    python -m benchmarks.stored_rate --seeds 100 --regime sparse --results benchmarks/results

Constant or falling linearly, over the epochs of configs/comparison-<regime>.yaml and over twice as many; the
rollouts are the same. Success right after the stored phase. On seeds that no comparison reports. Half an
hour of one core a seed, most of it sft.
"""

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks._regimes import comparison_made, config_of, rows_of_look
from benchmarks._results import Row
from benchmarks._run import Asked, Benchmark, main


def config_with_rates(regime: str) -> Any:
    """Returns the regime's configuration with an arm for each way that the rate may go."""
    config = config_of(regime)
    arm, epochs = config["comparison"]["arms"]["no_critic"], config["stored"]["max_epochs"]
    config["comparison"]["arms"] = {
        f"{'falling' if decays else 'constant'}_{n}": arm
        | {"stored.decays": decays, "stored.max_epochs": n, "actor.num_iterations": 1}
        for n in (epochs, 2 * epochs)
        for decays in (False, True)
    }
    config["comparison"]["method"] = f"constant_{epochs}"
    return config


def measure(asked: Asked) -> Iterator[Row]:
    """Makes a seed's arms; yields success after the stored phase and what it had paid."""
    regime = asked.options.regime
    found = comparison_made(config_with_rates(regime), f"{regime}-rate-seed{asked.seed}", asked)
    for look in found.table("comparison").to_pylist():
        if look["iteration"] == 0:
            yield from rows_of_look(look | {"arm": f"{regime}, {look['arm']}"})


BENCHMARK = Benchmark("stored_rate", __doc__, measure, seeds=(100, 102), options={"regime": "dense"})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
