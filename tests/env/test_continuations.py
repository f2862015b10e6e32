"""What an audit plays after each rollout, without an engine; `test_splitters.py` plays it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from env.play.chains import Chained, plan_groups
from env.play.continuations import Audit, Continuations, one_bare_per_task
from env.play.requests import EpisodeRequest
from env.play.units import Course
from pipeline.steps import state_tokens
from pipeline.types import Rollout
from tests.env.test_chains import TASK
from tests.rollouts import rollout

K = 3
PLAYER: Any = None


def audit(num_tasks: int = 1, draws: int = 2, with_siblings: bool = True) -> Audit:
    """Returns an audit with K continuations of a state."""
    tasks = [replace(TASK, task_id=f"t{i}") for i in range(num_tasks)]
    groups = plan_groups(tasks, stage_key="k", seed=0, iteration=0, num_attempts=1, draws=draws)
    chained = Chained(groups, 0, "audit", 100, stop_at_success=False)
    return Audit(chained, Continuations("k", 0, "audit"), K, frozenset({"t0"} if with_siblings else ()))


def ended(request: EpisodeRequest, **changes: Any) -> Rollout:
    """Returns a rollout of two steps, as one of this request ends."""
    names = ("rollout_id", "group_id", "kind", "draw", "seed", "start_step_index")
    of_request = {name: getattr(request, name) for name in names} | {"task_id": request.task.task_id}
    return rollout(**(of_request | changes))


def course_of(made: Audit) -> tuple[Course, EpisodeRequest, EpisodeRequest]:
    course = made.course(PLAYER)
    first, second = course.first
    return course, first, second


@pytest.mark.parametrize(
    ("changes", "with_siblings", "expected"),
    [
        ({}, True, {"continuation": 2 * K, "sibling": 5}),
        ({}, False, {"continuation": 2 * K}),
        ({"guided": True}, True, {"continuation": 2 * K}),
        ({"steps": ()}, True, {}),
        ({"reward": None}, True, {}),
    ],
)
def test_states_of_a_graded_first_draw_are_continued_and_one_has_siblings_if_it_is_bare(
    changes: dict[str, Any], with_siblings: bool, expected: dict[str, int]
) -> None:
    course, first, second = course_of(audit(with_siblings=with_siblings))
    asked = course.after(ended(first, **changes))
    assert Counter(request.kind for request in asked) == expected
    for kind, draws in {"continuation": [*range(K)] * 2, "sibling": range(K, K + 5)}.items():
        assert [request.draw for request in asked if request.kind == kind] == [*draws] * (kind in expected)
    assert not course.after(ended(second))
    assert not any(course.after(ended(request)) for request in asked if request.kind == "continuation")


@pytest.mark.parametrize(
    ("said", "num_steps", "continued"),
    [
        ([(1, 7), (2, 7), (1, 8), (2, 8), (1, 7)], [2] * 5, 2),
        ([(1, 7), (1, 8), (1, 9), (1, 7), (1, 8)], [2] * 5, 0),  # one step, five times
        ([(1, 7), (1, 7), (1, 7), (1, 7), (2, 7)], [2, 2, 2, 2, 1], 0),  # nothing follows the other one
    ],
)
def test_distinct_siblings_are_continued_after_the_last_of_them_if_there_are_two(
    said: Sequence[tuple[int, int]], num_steps: Sequence[int], continued: int
) -> None:
    course, first, _ = course_of(audit())
    parent = ended(first)
    siblings = [request for request in course.after(parent) if request.kind == "sibling"]
    state = siblings[0].start_step_index
    of_parent = {"parent_rollout_ids": (parent.rollout_id,), "prompt_token_ids": state_tokens(parent, state)}
    *early, last = (
        course.after(
            ended(
                request, mask=(1, 1), response_token_ids=tokens, steps=((0, 1), (1, 2))[:number], **of_parent
            )
        )
        for request, tokens, number in zip(siblings, said, num_steps, strict=True)
    )
    assert not any(early)
    assert [request.kind for request in last] == ["after_sibling"] * continued * K
    assert {request.start_step_index for request in last} <= {state + 1}


@pytest.mark.parametrize(("size", "parts"), [(16, [4, 4]), (2, [1] * 8)])
def test_a_part_has_fewer_tasks_the_more_each_rollout_is_continued(size: int, parts: list[int]) -> None:
    found = audit(num_tasks=8, draws=1).parts(size)
    assert [len(part.chained.groups) for part in found] == parts


@pytest.mark.parametrize(
    "other", [{"kind": "continuation"}, {"reward": None}, {"steps": ()}, {"guided": True}]
)
def test_one_whole_graded_bare_rollout_of_a_task_is_chosen(other: dict[str, Any]) -> None:
    unfit = [rollout(rollout_id=f"x{i}", seed=10 + i, **other) for i in range(9)]
    assert one_bare_per_task(unfit, 2, purpose="x", seed=0) == []
    of_tasks = [rollout(rollout_id=f"{name}{i}", task_id=name, seed=i) for name in "abc" for i in range(2)]
    chosen = one_bare_per_task([*unfit, *of_tasks], 2, purpose="x", seed=0)
    assert len({r.task_id for r in chosen} & set("abc")) == len(chosen) == 2
