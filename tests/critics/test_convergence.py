"""When a fit has converged, and which of its weights are best: looks whose Briers are known."""

from typing import Any

import numpy as np
import pytest

from critics.fit.convergence import FRESH, best_of, evaluate
from critics.fit.held_out import HeldOut
from critics.fit.schedule import Schedule
from critics.logit import logit
from pipeline.training import TrainingRow

NUM_TASKS = 80
WON = np.arange(NUM_TASKS) % 2
UP_AND_DOWN = 1.0 - 2 * (np.arange(NUM_TASKS) // 2 % 2)
"""+1 for two tasks, a won and a lost one, -1 for the next two."""
SIGMA = 0.02
ERROR = SIGMA / np.sqrt(NUM_TASKS)
"""Standard error of a mean gain whose tasks differ by +-SIGMA."""


class Scripted:
    """A trainer whose logits are said."""

    def __init__(self) -> None:
        self.num_updates = 0
        self.z = np.zeros(NUM_TASKS)

    def forward(self, rows: list[TrainingRow]) -> list[dict[str, np.ndarray]]:
        return [{"scores": np.array([[z, 0.0]])} for z in self.z]


@pytest.fixture
def validation() -> HeldOut:
    """A task is one state with one sample."""
    zeros, ones = np.zeros(NUM_TASKS, np.int64), np.ones(NUM_TASKS, np.int64)
    return HeldOut(
        rows=tuple(TrainingRow(np.zeros(1, np.int32)) for _ in range(NUM_TASKS)),
        row=np.arange(NUM_TASKS), position=zeros, step_index=zeros, context=np.full(NUM_TASKS, "bare"),
        task_id=np.array([f"t{i:02}" for i in range(NUM_TASKS)]), num_success=WON, num_samples=ones,
        fresh_success=zeros, fresh_samples=zeros, told=np.full(NUM_TASKS, None),
    )  # fmt: skip


def look(now: dict[str, Any], validation: HeldOut, brier: np.ndarray, level: float = 0.0) -> list[int]:
    """Notes a look at weights whose tasks have these Briers, once their level is right."""
    trainer = Scripted()
    trainer.num_updates = 1 + len(now["evaluations"])
    right = 1 - np.sqrt(brier)  # the chance that is given to what happened
    trainer.z = logit(np.where(WON, right, 1 - right)) + level
    return evaluate(trainer, validation, Schedule(1, 0, 99, frozenset()), 0.0, now, 0)  # type: ignore[arg-type]


def test_a_gain_counts_from_one_standard_error_on_and_small_ones_add_up(validation: HeldOut) -> None:
    now = dict(FRESH)
    first = np.full(NUM_TASKS, 0.2)
    second = first - 0.5 * ERROR + SIGMA * UP_AND_DOWN
    third = first - 1.3 * ERROR + SIGMA * UP_AND_DOWN
    for brier in (first, second, third, third):
        look(now, validation, brier)
    assert [entry["stale"] for entry in now["evaluations"]] == [0, 1, 0, 1]
    assert now["reference"] == 2
    assert now["evaluations"][1]["gain"] == pytest.approx(0.5 * ERROR)
    assert now["evaluations"][1]["gain_se"] == pytest.approx(ERROR, rel=0.1)
    assert now["evaluations"][2]["gain"] == pytest.approx(1.3 * ERROR)


def test_the_level_of_all_values_is_neither_a_gain_nor_a_loss(validation: HeldOut) -> None:
    now = dict(FRESH)
    brier = np.full(NUM_TASKS, 0.2) + SIGMA * UP_AND_DOWN
    look(now, validation, brier)
    look(now, validation, brier, level=2.0)
    plain, raised = now["evaluations"]
    assert raised["brier"] == pytest.approx(plain["brier"], abs=1e-6)
    assert raised["bias"] > plain["bias"] + 0.2


def test_weights_that_are_surely_worse_are_let_go_and_others_kept(validation: HeldOut) -> None:
    now = dict(FRESH)
    best = np.full(NUM_TASKS, 0.2)
    assert look(now, validation, best) == []
    assert look(now, validation, best + 0.5 * ERROR + SIGMA * UP_AND_DOWN) == []
    assert look(now, validation, best - 6 * ERROR + SIGMA * UP_AND_DOWN) == [0, 1]
    assert now["kept"] == [2]
    assert set(now["task_brier"]) == {"2"}


def test_of_those_kept_the_best_within_rollouts_wins_and_the_lowest_brier_where_that_is_unknown() -> None:
    entries = [{"ev_within": ev, "brier": brier} for ev, brier in ((0.1, 0.10), (0.3, 0.12), (0.9, 0.3))]
    assert best_of({"evaluations": entries, "kept": [0, 1]}) == 1
    entries[1]["ev_within"] = None
    assert best_of({"evaluations": entries, "kept": [0, 1]}) == 0
