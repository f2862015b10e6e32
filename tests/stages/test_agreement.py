"""What an engine is asked after it got weights."""

from types import SimpleNamespace
from typing import Any

import pytest

from stages.wiring.agreement import NUM_PROMPTS, Agreement


@pytest.mark.parametrize(
    ("kind", "replicas", "num_tasks", "asked"),
    [
        ("vllm", 2, 40, NUM_PROMPTS),
        ("vllm", 11, 40, 11),
        ("vllm", 11, 3, 11),
        ("vllm", 2, 3, 3),
        ("transformers", None, 40, NUM_PROMPTS),
    ],
)
def test_every_replica_of_vllm_is_asked(kind: str, replicas: int | None, num_tasks: int, asked: int) -> None:
    """One that nobody asks could sample with stale weights, unseen."""
    config = SimpleNamespace(engine=SimpleNamespace(kind=kind, replicas=replicas))
    team = SimpleNamespace(recipe=SimpleNamespace(config=config), ask=lambda question: question.args[0])
    learner: Any = SimpleNamespace(synced=lambda: team, trainer=None)
    tasks: list[Any] = list(range(num_tasks))
    probe = Agreement.asked(learner, tasks, 0, half_precision=True).probe
    assert len(probe) == asked
    assert len(set(probe)) == min(asked, num_tasks)
