"""The solution that a message holds: its last block of code."""

import re
from dataclasses import dataclass
from itertools import pairwise

FENCE = "```"
LINE_BREAK = re.compile(r"\r\n?|\n")
"""Where Python's compiler begins a new line."""
THINK, END_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Solution:
    """A block of code, and the character of the message at which it begins."""

    text: str
    start: int

    def line_spans(self) -> list[tuple[int, int]]:
        """Returns the half-open span of characters of each line, its line break included, in the message."""
        ends = [found.end() for found in LINE_BREAK.finditer(self.text)]
        return list(pairwise(self.start + at for at in (0, *ends, len(self.text))))

    def line(self, number: int) -> str:
        """Returns the text of a line, counted from 1, without its indentation."""
        return LINE_BREAK.split(self.text)[number - 1].strip()


def solution_of(message: str) -> Solution | None:
    r"""Returns the last block between fences of three backticks, or None if there is none after the thinking.

    A block that the message does not close ends with it. Linear in the message's length.

    Example:
        >>> solution_of("So:\n```python\nx = 1\n```\nDone.")
        Solution(text='x = 1\n', start=14)
    """
    at = message.rfind(END_THINK) + len(END_THINK) if END_THINK in message else 0
    if THINK in message[at:]:
        return None
    found, opened = None, None  # the last closed block, and where an open one begins
    for match in re.compile(r"[^\n]*\n|[^\n]+").finditer(message, at):
        if match[0].lstrip(" ").startswith(FENCE):
            if opened is None:
                opened = match.end()
            else:
                found, opened = Solution(message[opened : match.start()], opened), None
    return found if opened is None else Solution(message[opened:], opened)
