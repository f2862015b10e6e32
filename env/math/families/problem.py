"""A problem of a family, and the words that families share."""

from collections.abc import Sequence
from dataclasses import dataclass

from env.math.worked import Worked

ASK_FOR_BOX = "Reason line by line, then give the answer in \\boxed{}."
ASK_FOR_LINES = "Write one calculation a line, then the answer in \\boxed{}."


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with its gold answer and a worked solution that ends in it."""

    question: str
    answer: str
    worked: Worked


def chained(
    question: str,
    lines: Sequence[str],
    calculations: Sequence[str],
    *,
    before: str = "",
    after: str = "",
    modulus: int | None = None,
) -> Problem:
    """Returns a problem whose answer is the last calculation's result, between `before` and `after`.

    Each line gives what it computes; the result of calculation k is written behind line k.
    """
    full = tuple(f"{line} = <<{place}>>" for place, line in enumerate(lines))
    last = f"{before}<<{len(lines) - 1}>>{after}"
    worked = Worked((*full, f"\\boxed{{{last}}}"), tuple(calculations), (), modulus)
    answer = last.replace(f"<<{len(lines) - 1}>>", worked.said({})[-1])
    return Problem(question, answer, worked)
