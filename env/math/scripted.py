"""Scripted solvers of mixed quality: all write a worked solution, some with errors in known places."""

from collections.abc import Sequence
from random import Random

from env.chat.style import ChatStyle
from env.math.worked import Worked, slip
from env.protocol import Action
from pipeline.types import Task

SHARES = {"careful": 0.25, "careless": 0.40, "noisy": 0.15, "forgetful": 0.10, "guesser": 0.10}
"""Mixed quality on purpose: a perfect teacher leaves a critic nothing to tell apart (start values)."""
CARELESS_SUCCESS = 0.3
"""How often a careless solver gets through without a slip, however long the solution is (start value)."""


def slips_of(worked: Worked, policy: str, rng: Random, noise: float) -> dict[int, str]:
    """Returns calculation -> wrong result, for each that a solver gets wrong by itself.

    What follows from a wrong result is no slip: it is right as written.
    """
    number = len(worked.calculations)
    rates = {"careless": 1 - CARELESS_SUCCESS ** (1 / max(1, number)), "noisy": noise}
    slips: dict[int, str] = {}
    for place in range(number):
        if rng.random() < rates.get(policy, 0.0):
            slips[place] = slip(rng, worked.said(slips)[place], worked.modulus)
    return slips


def solution(worked: Worked, policy: str, rng: Random, noise: float) -> str:
    """Returns what a solver writes.

    careful makes no error; careless slips in seven solutions of ten; noisy slips in a share `noise` of the
    calculations; forgetful leaves one out, so that no line is false; guesser writes an answer alone, right in
    three cases of ten.
    """
    if policy == "forgetful" and len(worked.calculations) > 1:
        worked = worked.without(rng.randrange(len(worked.calculations) - 1))
    said = worked.said(slips_of(worked, policy, rng, noise))
    if policy != "guesser":
        return worked.text(said)
    if said and rng.random() >= CARELESS_SUCCESS:
        said[-1] = slip(rng, said[-1], worked.modulus)
    return worked.text(said).rpartition("\n")[2]


def demonstrate(
    task: Task,
    policy: str,
    seed: int,
    noise: float = 0.0,
    earlier: Sequence[Sequence[Action]] = (),
    style: ChatStyle | None = None,
    thoughts: bool = False,
) -> list[Action]:
    """Returns a solver's one message, the same in every style and with thoughts: it calls nothing."""
    return [Action(solution(Worked.of(task.details), policy, Random(seed), noise), "none")]
