"""What an actor holds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config import load_config
from pipeline.models.policy import Policy
from stages.settings import Config
from stages.wiring import learner

ROOT = Path(__file__).parents[2]


class Stub:
    """A trainer that answers whether its adapters are to compute."""

    def forward(self, rows: Any, adapted: bool = True) -> list[bool]:
        return [adapted]

    def gpu_use(self) -> list[Any]:
        return []

    def offload(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("lora_rank", "models", "answer"), [(0, 2, True), (16, 1, False)])
def test_where_adapters_train_the_reference_is_the_model_without_them(
    lora_rank: int, models: int, answer: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Any] = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(learner, "make_policy_trainer", lambda *_, **options: made.append(options) or Stub())
    hands = SimpleNamespace(start=lambda number: None, close=lambda: None)
    monkeypatch.setattr(learner, "make_hands", lambda *_: hands)
    overrides = [f"training.lora_rank={lora_rank}"]
    config = load_config(Config, ROOT / "configs" / "phone-qwen3-8b-8x24gb.yaml", overrides)
    policy = Policy(tmp_path, None, None, "digest", "digest")
    credit: Any = SimpleNamespace(loss=SimpleNamespace(kl=1e-3))
    with learner.held(config, policy, tmp_path, credit=credit, critic=None, checkpoint=None) as found:
        assert len(made) == models
        assert found.reference is not None
        assert found.reference.forward([]) == [answer]
