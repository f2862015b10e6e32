"""What an engine is asked after it got weights."""

from types import SimpleNamespace
from typing import Any

import pytest

import stages.wiring.agreement as module
from pipeline.errors import ArtifactError
from stages.wiring.agreement import NUM_PROMPTS, Agreement
from tests.rollouts import rollout


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


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compares rollouts where engine and trainer differ by so much; returns the gap and who was compared."""

    def of(
        rollouts: list[Any], *, probe: float, gap: float = 0.0, half: bool = True
    ) -> tuple[float, list[str]]:
        seen: list[str] = []
        monkeypatch.setattr(module, "engine_trainer_gap", lambda *_: probe)
        monkeypatch.setattr(
            module, "logprob_gap", lambda _, some: seen.extend(r.rollout_id for r in some) or gap
        )
        nobody: Any = None
        return Agreement(nobody, nobody, nobody, 3, half).on(rollouts), seen

    return of


def test_rollouts_from_all_over_an_iteration_are_compared_and_none_without_a_token(compared: Any) -> None:
    """An environment that fails at its start leaves a rollout of no token, and a row of none is an error."""
    empty = rollout(mask=(), steps=(), prompt_token_ids=(), rollout_id="empty")
    rollouts = [empty, *(rollout(rollout_id=str(i)) for i in range(64)), empty]
    gap, seen = compared(rollouts, probe=0.001, gap=0.002)
    assert (gap, seen) == (0.002, [str(4 * i) for i in range(16)])
    assert compared(rollouts[:3], probe=0.001, gap=0.002)[1] == ["0", "1"]
    assert compared([empty] * 20, probe=0.001) == (0.001, [])


@pytest.mark.parametrize(
    ("probe", "gap", "half", "passes"),
    [
        (0.1, 0.04, True, True),  # 128 tokens of bf16 by themselves say little
        (0.21, 0.04, True, False),
        (0.01, 0.06, True, False),
        (float("nan"), 0.0, True, False),
        (9e-5, 9e-5, False, True),
        (2e-4, 0.0, False, False),
        (0.0, 2e-4, False, False),
    ],
)
def test_a_gap_is_refused_on_the_probe_or_on_rollouts(
    compared: Any, probe: float, gap: float, half: bool, passes: bool
) -> None:
    if passes:
        assert compared([rollout()], probe=probe, gap=gap, half=half)[0] == gap
    else:
        with pytest.raises(ArtifactError, match="iteration 3: engine and trainer differ by"):
            compared([rollout()], probe=probe, gap=gap, half=half)
