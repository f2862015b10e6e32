"""Demonstrations that an environment fails: left out and counted, a refusal if they are many."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from env.play.demonstrations import Demonstration
from env.play.guard import FailureError
from pipeline.config import load_config
from pipeline.errors import ArtifactError, ExitCode
from pipeline.rows import LeftOut
from stages.settings import Config
from stages.wiring import demonstrator, sft_data
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


@pytest.mark.parametrize(("number", "code"), [(150, None), (149, ExitCode.FAILED_ITEMS)])
def test_what_is_lost_is_told_from_what_is_demonstrated(monkeypatch, number, code):
    shown, later = Demonstration("p", (), True, False), []

    def do(lessons, on_tick):
        yield [shown, *DOWN]
        later.append("after the refusal")
        yield [shown]

    pool = SimpleNamespace(do=do, start=lambda parts: None, close=lambda: None)
    monkeypatch.setattr(sft_data, "make_pool", lambda *given: pool)
    monkeypatch.setattr(sft_data, "tasks_to_demonstrate", lambda start, train: train)
    config = load_config(Config, DEMO, [f"sft.num_demonstrations={number}"])
    start = SimpleNamespace(config=config, log_folder=None, seed=0, progress=lambda *_: nullcontext())
    if code is None:
        assert sft_data.play_demonstrations(start, ["task"]) == ([shown, shown], DOWN)
        return
    with pytest.raises(ArtifactError) as raised:
        sft_data.play_demonstrations(start, ["task"])
    assert (raised.value.code, later) == (code, [])


def test_a_checkpoint_is_only_gone_on_from_with_the_same_demonstrations():
    refuse_other_lost(DOWN, [0, 1, 2])
    with pytest.raises(ArtifactError, match=r"without the demonstrations \[1\], .* failed \[0, 1, 2\]"):
        refuse_other_lost(DOWN, [1])
