"""Demonstrations that an environment fails: left out and counted, a refusal if they are many."""

from pathlib import Path

import pytest

from env.play.guard import FailureError
from pipeline.config import load_config
from pipeline.errors import ArtifactError, ExitCode
from pipeline.rows import LeftOut
from stages.settings import Config
from stages.wiring import demonstrator
from stages.wiring.sft_data import refuse_lost, refuse_other_lost

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
DOWN = [LeftOut("demonstrations", number, "down", "verdict: no answer") for number in range(3)]


def test_a_lesson_goes_on_after_a_demonstration_that_failed(monkeypatch):
    tasks, ticks = ("a", "b", "c"), []

    def demonstrate(demonstrators, make_env, task, **how):
        if task == "b":
            raise FailureError("down", "verdict")
        return task

    monkeypatch.setattr(demonstrator, "demonstrate", demonstrate)
    lesson = demonstrator.Lesson(load_config(Config, DEMO, []), 0, 10, tasks)
    played = demonstrator.play_lesson(lesson, lambda: ticks.append(1))
    assert played == ["a", LeftOut("demonstrations", 11, "down", "verdict"), "c"]
    assert len(ticks) == 3


def test_many_lost_demonstrations_are_refused_with_their_reason():
    refuse_lost(DOWN, 150)
    said = r"have failed 3 of 149 .*verdict: no answer.* 2% .*Next: "
    with pytest.raises(ArtifactError, match=said) as raised:
        refuse_lost(DOWN, 149)
    assert raised.value.code == ExitCode.FAILED_ITEMS


def test_a_checkpoint_is_only_gone_on_from_with_the_same_demonstrations():
    refuse_other_lost(DOWN, [0, 1, 2])
    with pytest.raises(ArtifactError, match=r"without the demonstrations \[1\], .* failed \[0, 1, 2\]"):
        refuse_other_lost(DOWN, [1])
