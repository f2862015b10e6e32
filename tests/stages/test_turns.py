"""Who shares GPUs takes turns: before one works, everybody else has left."""

from __future__ import annotations

from typing import Any

from pipeline.engines.gpu_sharing import Turns


class Recorder:
    """Stands for an engine or a trainer: tells what it was asked, in the order of all of them."""

    policy_digest = "weights"

    def __init__(self, name: str, said: list[str]) -> None:
        self._name, self._said = name, said
        said.append(f"{name} is made")

    def __getattr__(self, method: str) -> Any:
        return lambda: self._said.append(f"{self._name}.{method}")


def test_one_works_when_the_others_have_left() -> None:
    said: list[str] = []
    turns = Turns(shared=True)
    trainer: Any = turns.trainer(lambda: Recorder("trainer", said))  # type: ignore[arg-type,return-value]
    reference: Any = turns.trainer(lambda: Recorder("reference", said))  # type: ignore[arg-type,return-value]
    engine: Any = turns.engine(lambda: Recorder("engine", said))  # type: ignore[arg-type,return-value]
    assert said == [
        "trainer is made",
        "trainer.offload",
        "reference is made",
        "trainer.offload",
        "reference.offload",
        "engine is made",
    ]
    for work, expected in (
        (lambda: engine.submit(), ["engine.submit"]),
        (lambda: engine.collect(), ["engine.collect"]),
        (lambda: trainer.forward(), ["reference.offload", "engine.sleep", "trainer.forward"]),
        (lambda: trainer.update(), ["trainer.update"]),
        (lambda: reference.forward(), ["trainer.offload", "engine.sleep", "reference.forward"]),
        (lambda: trainer.weights(), ["reference.offload", "engine.sleep", "trainer.weights"]),
        (lambda: engine.load_weights(), ["trainer.offload", "reference.offload", "engine.load_weights"]),
        (lambda: trainer.save_checkpoint(), ["reference.offload", "engine.sleep", "trainer.save_checkpoint"]),
        (lambda: engine.close(), ["engine.close"]),  # frees memory, so it needs no turn
    ):
        said.clear()
        work()
        assert said == expected
    said.clear()
    assert engine.policy_digest == "weights"
    assert said == []


def test_who_does_not_share_is_left_alone() -> None:
    said: list[str] = []
    made = Recorder("engine", said)
    assert Turns(shared=False).engine(lambda: made) is made  # type: ignore[arg-type,return-value,comparison-overlap]
