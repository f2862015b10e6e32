"""Tasks of the project's own problems."""

from collections.abc import Sequence

from env.code.feedback import call_text, value_text
from env.code.problems import Example, OwnProblem, own_problems
from env.code.values import decode
from env.offer import TaskSettings
from pipeline.ids import digest, seed_of
from pipeline.types import Task

OPENING = "Write the Python function `{name}`."
ENDING = "Answer with the whole function and what it imports, in a block of code between lines of ```."


def own_tasks(settings: TaskSettings, seed: int) -> list[Task]:
    """Returns tasks of the project's own problems: each split has its own, in an order by hash.

    There are at most as many as the settings say, and no more than there are problems.
    """
    tasks = []
    for split, size in settings.sizes.items():
        problems = [own for own in own_problems() if own.split == split]
        problems.sort(key=lambda own: seed_of(seed, "own problem", own.name))
        tasks += [_task(own, index) for index, own in enumerate(problems[:size])]
    return tasks


def prompt_of(name: str, statement: str, signature: str, public: Sequence[Example]) -> str:
    """Returns what a problem says to a policy."""
    shown = "\n".join(f"{call_text(name, test)} == {value_text(decode(test.expected))}" for test in public)
    parts = [OPENING.format(name=name), statement.strip()]
    parts += [f"```python\n{signature}\n```"] if signature else []
    parts += [f"For example:\n{shown}"] if shown else []
    return "\n\n".join([*parts, ENDING])


def _task(own: OwnProblem, index: int) -> Task:
    said = prompt_of(own.name, own.statement, own.signature, own.problem.public)
    return Task(
        task_id=digest("task", "code", own.name),
        data_source="code",
        split=own.split,
        level=own.level,
        prompt=({"role": "user", "content": said},),
        style="rule",
        ground_truth=own.problem.to_text(),
        ability="code",
        cluster=own.cluster,
        index=index,
    )
