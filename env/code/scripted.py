"""Scripted programmers: they know the solution, and slip as people do, in ways that a verifier can tell."""

import re
from collections.abc import Sequence
from random import Random

from env.chat.style import ChatStyle
from env.code.problems import Problem, own_problems
from env.code.tasks import OPENING
from env.protocol import Action
from pipeline.ids import digest
from pipeline.types import Task

SHARES = {"careful": 0.4, "careless": 0.6}
"""Of demonstrations: mixed quality, since a perfect teacher leaves a critic nothing to tell apart."""
DIGEST = digest("scripted programmer", 1)
_RIGHT, _RIGHT_AFTER_FEEDBACK = 0.4, 0.8
_NAME = re.compile(re.escape(OPENING).replace(re.escape("{name}"), r"(\w+)"))
_FAILED = "=> Not solved."
"""What an earlier attempt's line holds."""


def demonstrate(
    task: Task,
    policy: str,
    seed: int,
    noise: float = 0.0,
    earlier: Sequence[Sequence[Action]] = (),
    style: ChatStyle | None = None,
    thoughts: bool = False,
) -> list[Action]:
    """Returns the message with the solution, or, from who is careless, with one that has a slip."""
    right, *wrong = solutions(Problem.from_text(task.ground_truth))
    chosen = right if policy == "careful" else Random(seed).choice(wrong)
    return [Action(message_of(chosen), "none")]


def reply(prompt_text: str, rng: Random, style: ChatStyle) -> str:
    """Returns the rest of a message, with the solution or with one that has a slip, as the message began."""
    asked = _NAME.search(prompt_text)
    own = {own.name: own for own in own_problems()}.get(asked[1] if asked else "")
    if own is None:
        return "I do not know."
    right, *wrong = map(message_of, solutions(own.problem))
    opening = style.render((), tools=(), add_generation_prompt=True)
    begun = prompt_text.rpartition(f"{style.stop_token}\n")[2].removeprefix(opening)
    wrong = [message for message in wrong if message.startswith(begun)]
    chance = _RIGHT_AFTER_FEEDBACK if _FAILED in prompt_text else _RIGHT
    if right.startswith(begun) and (rng.random() < chance or not wrong):
        return right.removeprefix(begun)
    return rng.choice(wrong).removeprefix(begun) if wrong else ""


def message_of(solution: str) -> str:
    """Returns a solution as a policy says it."""
    return f"```python\n{solution.rstrip()}\n```"


def solutions(problem: Problem) -> list[str]:
    """Returns the solution and others that fail: one that does not compile, one that raises, and known slips.

    Raises ValueError for a problem without a solution.
    """
    if not problem.reference:
        raise ValueError(f"{problem.entry_point} has no reference solution, so nobody can demonstrate it")
    lines = problem.reference.rstrip().split("\n")
    begins = re.compile(rf"def\s+{problem.entry_point}\b")
    place = next(i for i, line in enumerate(lines) if begins.match(line))
    unread = [*lines[:place], lines[place].removesuffix(":"), *lines[place + 1 :]]
    indent = lines[-1][: len(lines[-1]) - len(lines[-1].lstrip())]
    raising = [*lines[:-1], f"{indent}check_result()", lines[-1]]
    slips = next((own.slips for own in own_problems() if own.problem == problem), ())
    return [problem.reference, "\n".join(unread), "\n".join(raising), *slips]
