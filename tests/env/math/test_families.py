"""Families: worked solutions are right, errors that are put into them are found where they are."""

import re
from collections import Counter
from random import Random

import pytest

from env.math import tasks
from env.math.families import FAMILIES, LEVELS
from env.math.offer import MATH
from env.math.quantities import quantity
from env.math.scripted import SHARES, slips_of, solution
from env.math.settings import MathTasks
from env.math.shapes import spelt
from env.math.steps import check_lines
from env.math.tasks import practice_tasks, task_of
from env.math.worked import Worked
from pipeline.errors import ConfigError
from pipeline.types import Task, Verdict

CASES = [(family, level) for family in FAMILIES for level in LEVELS]


def made(family: str, level: int, number: int = 12) -> list[Task]:
    rng = Random(f"{family} {level}")
    return [task_of(FAMILIES[family](rng, level), family, level, "train", i) for i in range(number)]


def played(task: Task, text: str) -> Verdict:
    env = MATH.env()
    env.reset(task, 0)
    env.step(MATH.style("plain").parse(text))
    return env.verdict()


@pytest.mark.parametrize(("family", "level"), CASES)
def test_a_worked_solution_is_right_in_every_line_and_in_its_answer(family: str, level: int) -> None:
    for task in made(family, level):
        text = solution(Worked.of(task.details), "careful", Random(0), 0.0)
        verdict = played(task, text)
        assert verdict.success, (task.prompt, task.ground_truth, text)
        words = [step.status for step in verdict.steps]
        assert set(words[:-1]) == {"ok"}, (task.prompt, text, verdict.steps)
        assert words[-1] != "wrong"


@pytest.mark.parametrize(("family", "level"), CASES)
def test_the_first_error_that_is_put_in_is_the_first_that_is_found(family: str, level: int) -> None:
    for number, task in enumerate(made(family, level)):
        worked, rng = Worked.of(task.details), Random(number)
        slips = slips_of(worked, "careless", rng, 0.0)
        said = worked.said(slips)
        question = task.prompt[0]["content"]
        checks = check_lines(worked.text(said), question, task.details.get("modulus"))
        first = next((check.number - 1 for check in checks if check.status == "wrong"), None)
        assert first == min(slips, default=None), (question, worked.text(said), slips)


@pytest.mark.parametrize("family", FAMILIES)
def test_careless_solvers_get_through_as_often_as_they_should_at_every_level(family: str) -> None:
    for level in (1, 5):
        found = made(family, level, 100)
        right = [not slips_of(Worked.of(t.details), "careless", Random(i), 0.0) for i, t in enumerate(found)]
        assert 0.17 < sum(right) / len(right) < 0.43


def test_solvers_differ_in_what_the_verifier_can_say_of_them() -> None:
    found: dict[str, Counter[str]] = {}
    for policy in SHARES:
        counts = found[policy] = Counter()
        for number, task in enumerate(made("word", 3, 60)):
            verdict = played(
                task, MATH.demonstrators.play(task, policy, number, 0.2, (), None, False)[0].text
            )
            counts["right"] += bool(verdict.success)
            counts["false lines"] += any(step.status == "wrong" for step in verdict.steps)
            counts["lines"] += len(verdict.steps)
    assert found["careful"]["right"] == 60
    assert 0.15 < found["careless"]["right"] / 60 < 0.45
    assert found["forgetful"]["false lines"] == 0
    assert found["forgetful"]["right"] < 6
    assert found["guesser"]["lines"] == 60
    assert found["guesser"]["false lines"] == 0


def test_levels_grow_in_length() -> None:
    for family in ("chain_add", "arith", "word", "linear"):
        lengths = [len(Worked.of(made(family, level, 1)[0].details).calculations) for level in (1, 5)]
        assert lengths[0] < lengths[1]


def test_golds_are_numbers_that_the_grader_reads() -> None:
    units = Counter()
    for family, level in CASES:
        for task in made(family, level, 20):
            found = quantity(spelt(task.ground_truth))
            assert found is not None
            units[found.unit[0] if found.unit else "none"] += 1
    assert set(units) == {"none", "money", "share", "length"}


def settings_of(**changes: object) -> MathTasks:
    return MathTasks.model_validate({"environment": "math", "num_train": 60, "num_held_out": 20} | changes)


def test_tasks_are_new_in_every_split_and_follow_from_the_seed() -> None:
    one, again, other = (MATH.task_set(settings_of(), seed).tasks for seed in (1, 1, 2))
    assert one == again != other
    assert Counter(task.split for task in one) == {"train": 60, "val": 20, "test": 20}
    assert len({task.cluster for task in one}) == len({task.task_id for task in one}) == 100
    assert {task.details["family"] for task in one} == {"arith", "linear", "word", "units"}
    assert {task.level for task in one} == set(LEVELS)
    for task in one:
        MATH.check_gradable([task])


def test_practice_has_nothing_that_is_held_out() -> None:
    settings = settings_of(families={"chain_add": 1.0}, level_shares={1: 1.0})
    held_out = {task.cluster for task in MATH.task_set(settings, 0).tasks if task.split != "train"}
    practice = practice_tasks(settings, 200, 0, held_out)
    assert len(practice) == 200
    assert not held_out & {task.cluster for task in practice}


def test_too_many_tasks_of_a_small_family_are_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "MOST_TRIES", 1)
    settings = settings_of(num_train=400, families={"linear": 1.0}, level_shares={1: 1.0})
    with pytest.raises(
        ConfigError, match=r"linear has no more problems at level 1 .*Next: fewer tasks.num_train"
    ):
        MATH.task_set(settings, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"families": {"word": 0.5}}, "add up to 1"),
        ({"families": {"words": 1.0}}, r"tasks.families has \['words'\]; allowed: chain_add"),
        ({"level_shares": {6: 1.0}}, r"tasks.level_shares has \['6'\]; allowed: 1, 2, 3, 4, 5"),
    ],
)
def test_shares_that_are_none_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings_of(**changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_feedback_says_an_answer_that_the_solution_does_not_say_itself(family: str) -> None:
    env, told = MATH.make_env(MATH.settings(), "corrective"), 0
    for number, task in enumerate(made(family, 3, 40)):
        env.reset(task, 0)
        [action] = MATH.demonstrators.play(task, "careless", number, 0.0, (), None, False)
        env.step(action)
        feedback = env.feedback()
        if feedback is None:
            continue
        gold = re.findall(r"\d+(?:\.\d+)?", task.ground_truth)
        said = re.findall(r"\d+(?:\.\d+)?", feedback.text.partition(" is false. It is ")[2])
        assert not set(gold) & set(said), (task.ground_truth, feedback.text)
        told += bool(said)
    assert told > 3  # an error before the last line is corrected
