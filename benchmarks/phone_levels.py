"""The chain on levels 1 to 3 together: what the tiny actor gains at each level.

    python -m benchmarks.phone_levels        # over an hour on two CPU cores; goes on where it was stopped

Held-out tasks: new tasks of training companies and tasks of unseen companies; intervals are bootstraps
over companies. The run is `<data dir>/phone-l3-tiny` and stays there.
"""

import sys
from collections.abc import Sequence

from benchmarks._results import Criteria, Row, measured, surely_positive
from benchmarks._run import Asked, Benchmark, main
from benchmarks.demo_seeds import gained, run_chain

CONFIG = "configs/phone-l3-tiny.yaml"
LEVELS = ("level 1", "level 2", "level 3")


CRITERIA: Criteria = {
    **{f"{level}: first try gains, interval above 0": surely_positive(level, "gain") for level in LEVELS},
    "gate: PASS": lambda t: t("critic", "gate passed") == 1,
}


def measure(asked: Asked) -> Sequence[Row]:
    """Returns the gain of every slice of the held-out tasks, and what the critic explains."""
    summary, _ = run_chain(CONFIG, "phone-l3-tiny", asked)
    critic = {
        name: (summary["critic"][name]["value"], *summary["critic"][name]["interval"])
        for name in ("ev", "ev_within")
    }
    return [
        *(row for name, part in summary["by_slice"].items() for row in gained(name, part)),
        *measured("critic", {"gate passed": summary["critic"]["gate"] == "PASS", **critic}),
        *measured("run", {"minutes": summary["minutes"], "rollouts sampled": summary["budget"]["rollouts"]}),
    ]


BENCHMARK = Benchmark("phone_levels", __doc__, measure, CRITERIA)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
