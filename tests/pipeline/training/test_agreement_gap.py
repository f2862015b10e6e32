"""How far engine and trainer are apart."""

from typing import Any

import numpy as np
import pytest

from pipeline.engines import Generation
from pipeline.training import TrainingRow
from pipeline.training.policy_update import engine_trainer_gap


class Shifted:
    """A trainer that knows what the engine said, and says something else of each token."""

    def __init__(self, *shifts: list[float]) -> None:
        self.shifts = shifts

    def forward(self, rows: list[TrainingRow]) -> list[dict[str, np.ndarray]]:
        return [
            {"logprobs": row.columns["engine_logprobs"] + np.array(shift, np.float32)}
            for row, shift in zip(rows, self.shifts, strict=True)
        ]


def test_a_gap_is_the_mean_size_over_sampled_tokens_of_all_rows() -> None:
    def sampled(*logprobs: float) -> Any:
        return Generation("r", [7] * len(logprobs), list(logprobs), finish_reason="stop")

    trainer: Any = Shifted([5.0, 0.2, -0.2], [5.0, 5.0, 0.5])  # prompts are nobody's: 5 counts nowhere
    found = engine_trainer_gap(trainer, [([1], sampled(-1.0, -2.0)), ([1, 2], sampled(-3.0))])
    assert found == pytest.approx(0.3)
