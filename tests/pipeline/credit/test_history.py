from pipeline.credit.history import History, visited, worth_a_visit
from pipeline.types import Task
from tests.rollouts import rollout


def tasks_of(names: str) -> list[Task]:
    return [Task(name, "phone", "train", 1, (), "rule", "", "x", name, i) for i, name in enumerate(names)]


def names_of(names: str, history: History, rule: str, iteration: int = 1) -> str:
    found = worth_a_visit(tasks_of(names), history, rule=rule, iteration=iteration, seed=0)  # type: ignore[arg-type]
    return "".join(task.task_id for task in found)


def test_what_succeeded_in_its_last_visits_rests_for_five_iterations() -> None:
    history = {"a": (2, [1.0] * 8), "b": (2, [0.0] * 8), "c": (2, [1.0] * 7), "d": (2, [1.0] * 15 + [0.0])}
    assert names_of("abcdefghi", history, "none", 3) == "abcdefghi"
    assert names_of("abcdefghi", history, "all_right", 3) == "bcdefghi"
    assert names_of("abcdefghi", history, "uniform", 3) == "cdefghi"
    assert names_of("abcdefghi", history, "uniform", 7) == "cdefghi"
    assert names_of("abcdefghi", history, "uniform", 8) == "abcdefghi"
    nearly: History = {"a": (2, [1.0] * 9 + [0.9]), "b": (2, [1.0] * 7 + [0.8])}  # p .99 and .975
    assert names_of("abcdefghi", nearly, "all_right", 3) == "bcdefghi"


def test_a_fifth_comes_back_at_random_if_over_half_would_rest() -> None:
    """Ten of twenty may rest; of eleven two come back, of one or two one; which, changes by iteration."""
    names = "abcdefghijklmnopqrst"
    settled: History = {name: (0, [1.0] * 8) for name in names}
    assert names_of(names, {name: settled[name] for name in names[:10]}, "all_right") == names[10:]
    back = set()
    for iteration in range(1, 6):
        found = names_of(names, {name: settled[name] for name in names[:11]}, "all_right", iteration)
        assert found[-9:] == names[11:]
        assert len(found) == 9 + 2
        back.add(found[:-9])
    assert len(back) > 1
    assert names_of("a", settled, "all_right") == "a"
    assert names_of("ab", settled, "all_right") in ("a", "b")


def test_bare_outcomes_are_remembered_the_last_sixteen() -> None:
    won, lost = rollout(task_id="a"), rollout(task_id="a", reward=0.0)
    history = visited({}, [lost, *[won] * 15, rollout(task_id="b", guided=True)], 0)
    assert history == {"a": (0, [0.0] + [1.0] * 15)}
    later = visited(history, [won, rollout(task_id="a", reward=None)], 4)
    assert later == {"a": (4, [1.0] * 16)}
    assert history["a"][0] == 0  # a checkpoint's state never changes
