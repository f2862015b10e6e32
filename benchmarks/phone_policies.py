"""Scripted yardstick policies of the phone at every level: success, and the mean priced reward.

    python -m benchmarks.phone_policies

In the row "again" a success at the first attempt stands. A failure is tried again by the same policy, which
remembers what its calls taught. Of other splits than train the success of three policies is kept.
"""

import sys
from collections.abc import Sequence
from itertools import pairwise

from benchmarks._results import Criteria, Row, Table, measured
from benchmarks._run import Asked, Benchmark, main
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.tasks import SPLITS, generate_tasks
from env.phone.world.levels import LEVELS, MAX_PRICE
from pipeline.types import Task, Verdict

AGAIN = "adaptive again"
ROWS = (*POLICIES, AGAIN)
HELD_OUT = ("adaptive", "prior_only", "informed_over_collector")
"""Rows that are written of the other splits too."""
NOISE = 0.2  # share of random acts of noisy policies


def named(split: str, level: int, policy: str) -> str:
    """Returns the variant of a policy at a level of a split."""
    return f"{split} L{level} {policy}"


def rows_of(split: str, level: int, tasks: Sequence[Task], seed: int) -> list[Row]:
    """Returns success and priced reward of all policies on some tasks, the second attempt last."""
    verdicts: dict[str, list[Verdict]] = {name: [] for name in ROWS}
    for task in tasks:
        for policy in POLICIES:
            actions, _, verdict = play_scripted(task, policy, seed, NOISE)
            verdicts[policy].append(verdict)
            if policy == "adaptive":
                if not verdict.success:
                    verdict = play_scripted(task, policy, seed + 1, earlier=[actions])[2]
                verdicts[AGAIN].append(verdict)
    found = []
    for policy in ROWS if split == "train" else HELD_OUT:
        own = verdicts[policy]
        success = sum(bool(v.success) for v in own) / len(own)
        if split != "train":
            found += measured(named(split, level, policy), {"success": success})
            continue
        priced = sum(bool(v.success) * (1 - min(v.cost, MAX_PRICE)) for v in own) / len(own)
        found += measured(named(split, level, policy), {"success": success, "priced": priced}, len(own))
    return found


def measure(asked: Asked) -> list[Row]:
    """Returns the rows of all splits and levels."""
    found = []
    for level in LEVELS:
        tasks = generate_tasks(
            num_companies=200,
            num_train=500,
            num_val=200,
            num_test=200,
            level_shares={level: 1.0},
            seed=asked.seed,
        )
        for split in SPLITS:
            found += rows_of(split, level, [task for task in tasks if task.split == split], asked.seed)
    return found


def trained(t: Table, policy: str, metric: str = "success") -> list[float]:
    """Returns a policy's figure on training companies, level by level."""
    return [t(named("train", level, policy), metric) for level in LEVELS]


def falls(numbers: Sequence[float]) -> bool:
    """Returns whether each number is below the one before it."""
    return all(after < before for before, after in pairwise(numbers))


CRITERIA: Criteria = {
    "the oracle always succeeds": lambda t: set(trained(t, "oracle")) == {1},
    "the fabricator never does": lambda t: set(trained(t, "fabricator")) == {0},
    "trusting the habit falls from level to level": lambda t: falls(trained(t, "prior_only")),
    "asking for everything pays less than asking for what is needed": lambda t: all(
        everything < needed
        for everything, needed in zip(
            trained(t, "informed_over_collector", "priced"), trained(t, "adaptive", "priced"), strict=True
        )
    ),
}
BENCHMARK = Benchmark("phone_policies", __doc__, measure, CRITERIA)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
