"""GPUs that are not what the configuration says are found in time; taking turns changes nothing."""

from contextlib import nullcontext
from typing import Any

import pytest

import pipeline.hardware
from pipeline.errors import ConfigError
from pipeline.gpu_sharing import Turns
from pipeline.hardware import check_gpus
from stages.settings import Config
from stages.settings.engine import Transformers
from tests.stages.conftest import CRITIC

TWO = [20.0, 20.0]
RANKS = {"training": {"backend": "deepspeed", "num_ranks": 3}}
ONE_REPLICA = {"engine": {"kind": "vllm"}}
TENSORS = {"engine": {"kind": "vllm", "replicas": 2, "tensor_parallel": 2}}


@pytest.mark.parametrize(
    ("settings", "num_gpus", "gib", "free", "said"),
    [
        ({}, 8, 22.0, [22.0] * 8 + [1.0], None),  # the ninth is not used
        ({}, 8, 22.0, [22.5] * 7, "hardware.num_gpus = 8, but 7 GPUs are visible here"),
        ({}, 8, 22.0, [], "but 0 GPUs are visible here"),
        ({}, 8, 22.0, [22.5] * 5 + [21.9] * 3, r"GPU 5 has 21\.9 GiB free, hardware.gpu_memory_gib = 22"),
        (RANKS, 0, 0.0, TWO, r"hardware\.num_gpus = 0, but 2 GPUs .*, which training\.num_ranks would take"),
        (
            ONE_REPLICA,
            0,
            0.0,
            TWO,
            r"which engine\.replicas x engine\.tensor_parallel would take, and nothing",
        ),
        (TENSORS, 0, 0.0, [], None),  # they share the CPU
    ],
)
def test_missing_gpus_and_memory_are_refused(settings, num_gpus, gib, free, said, monkeypatch):
    monkeypatch.setattr(pipeline.hardware, "free_gpu_memory", lambda: free)
    config = Config.model_validate(settings)
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        check_gpus(num_gpus, gib, config.gpus_wanted(engine=True, training=True))
    monkeypatch.setattr(pipeline.hardware, "free_gpu_memory", lambda: pytest.fail("looked"))
    check_gpus(0, 0.0, config.gpus_wanted(engine=False, training=False))  # a stage that starts neither


def test_an_actor_that_takes_turns_is_the_actor_that_does_not(chain, tmp_path, monkeypatch):
    """Engine and trainer leave and come back in every iteration; on a CPU this drops caches and no more."""
    monkeypatch.setattr(Transformers, "shared_gpus", True)
    taken, take = [], Turns._take

    def counted(turns, number):
        taken.extend([number] * (turns._holder != number))
        take(turns, number)

    monkeypatch.setattr(Turns, "_take", counted)
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    assert lab.start("actor") == 0
    iterations = 1 + max(rollout.iteration for rollout in lab.rollouts("actor"))
    trainer, reference, engine = sorted(set(taken))  # as they are made
    last_look = [engine, trainer]
    assert taken[taken.index(engine) :] == [engine, reference, trainer] * iterations + last_look
    assert lab.artifact("actor").content_digest == chain.artifact("actor").content_digest


class Recorder:
    """Stands for an engine or a trainer: tells what it was asked, in the order of all of them."""

    policy_digest = "weights"

    def __init__(self, name, said):
        self._name, self._said = name, said
        said.append(f"{name} is made")

    def __getattr__(self, method):
        return lambda: self._said.append(f"{self._name}.{method}")


def test_one_works_when_the_others_have_left():
    said: list[str] = []
    turns = Turns(shared=True)
    trainer: Any = turns.trainer(lambda: Recorder("trainer", said))
    reference: Any = turns.trainer(lambda: Recorder("reference", said))
    engine: Any = turns.engine(lambda: Recorder("engine", said))
    assert said[:3] == ["trainer is made", "trainer.offload", "reference is made"]
    assert said[3:] == ["trainer.offload", "reference.offload", "engine is made"]
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
    made = Recorder("engine", said)  # who does not share is left alone
    assert Turns(shared=False).engine(lambda: made) is made
