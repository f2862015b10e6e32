from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from env.chat.plain import PlainStyle
from env.play.chains import Chained, plan_groups
from env.play.requests import EpisodeRequest
from env.play.units import Course
from pipeline.types import Task

TASK = Task("t", "e", "train", 1, ({"role": "user", "content": "count"},), "rule", "5", "count", "c", 0)


def chains(
    *, max_feedback_tokens: int = 100, num_attempts: int = 3, draws: int = 1, stop: bool = True
) -> Course:
    groups = plan_groups([TASK], stage_key="k", seed=0, iteration=0, num_attempts=num_attempts, draws=draws)
    chained = Chained(groups, 0, "rollouts", max_feedback_tokens, stop_at_success=stop)
    tokenizer = SimpleNamespace(
        encode=lambda text, add_special_tokens=True: [0] * add_special_tokens + [*text]
    )
    player: Any = SimpleNamespace(style=PlainStyle(), tokenizer=tokenizer, reviewer=None)
    return chained.course(player)


def test_a_share_of_the_groups_is_of_bare_draws_alone() -> None:
    groups = plan_groups(
        [replace(TASK, task_id=f"t{i}") for i in range(8)],
        stage_key="k",
        seed=0,
        iteration=0,
        num_attempts=3,
        draws=2,
        feedback_free_share=0.25,
        feedback_free_draws=4,
    )
    assert Counter((group.num_attempts, group.draws) for group in groups) == {(1, 4): 2, (3, 2): 6}


def played(request: EpisodeRequest, reward: float | None, feedback: str) -> Any:
    names = ("rollout_id", "group_id", "attempt", "draw")
    of_request = {name: getattr(request, name) for name in names}
    said = {
        "feedback_text": feedback,
        "message_texts": ("said",),
        "feedback_status": "",
        "feedback_failed": False,
    }
    end = "success" if (reward or 0) > 0.5 else "ended"
    return SimpleNamespace(**of_request, **said, reward=reward, finish_reason=end)


def after(made: Course, asked: Sequence[EpisodeRequest], *ends: tuple[float | None, str]) -> list[Any]:
    """Returns the round that follows when the rollouts of one ended so."""
    *early, last = [made.after(played(r, *end)) for r, end in zip(asked, ends, strict=True)]
    assert not any(early)
    return list(last)


def test_an_attempt_is_told_of_all_failed_ones_before_it_and_the_oldest_goes_first() -> None:
    made = chains(max_feedback_tokens=22)
    (second,) = after(made, made.first, (0.0, "one"))
    assert second.previous_attempts == ("said => one",)
    (third,) = after(made, [second], (0.0, "two"))
    assert third.previous_attempts == ("said => one", "said => two")
    assert third.feedback_in_context == "said => one\nsaid => two"
    assert after(made, [third], (0.0, "three")) == []
    assert made.skipped == {}
    tight = chains(max_feedback_tokens=21)
    (second,) = after(tight, tight.first, (0.0, "one"))
    (third,) = after(tight, [second], (0.0, "two"))
    assert third.previous_attempts == ("said => two",)
    assert third.parent_rollout_ids == (second.rollout_id,)


def test_only_failures_teach_where_a_success_ends_nothing_and_a_line_that_repeats_is_told_once() -> None:
    for end, stop in (((0.85, "well done"), False), ((0.0, "one"), True)):
        made = chains(draws=2, stop=stop)
        second = after(made, made.first, end, (0.0, "one"))
        assert [request.previous_attempts for request in second] == [("said => one",)] * 2


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ((1.0, "well done"), "solved_earlier"),
        ((0.85, "at a price"), "solved_earlier"),
        ((0.0, ""), "no_feedback"),
        ((None, ""), "no_feedback"),
        ((0.0, "x" * 200), "feedback_too_long"),
    ],
)
def test_without_a_lesson_the_group_ends_and_what_is_not_played_is_counted(
    end: tuple[float | None, str], kind: str
) -> None:
    made = chains(num_attempts=4, draws=2)
    assert after(made, made.first, end, end) == []
    assert made.skipped == {kind: 6}


def test_one_success_among_the_draws_of_a_round_ends_its_chain() -> None:
    made = chains(draws=2)
    assert after(made, made.first, (1.0, "well done"), (0.0, "one")) == []
    assert made.skipped == {"solved_earlier": 4}
