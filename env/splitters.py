"""How a message of the policy is cut into steps: by what was said so far, never by what follows.

So a message that is continued from one of its states is cut as if it had been sampled in one go.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

Splitter = Callable[[str], list[int]]
"""Message -> characters at which its second and later steps begin, ascending; its end may be one."""


def whole_message(text: str) -> list[int]:
    r"""Returns no border: a message is one step.

    Example:
        >>> whole_message("a\nb")
        []
    """
    return []


def lines(text: str) -> list[int]:
    r"""Returns the end of every line that says something; blank lines belong to the step after them.

    Example:
        >>> lines("3 + 4 = 7\n\n7 + 8 = 5\nso")
        [10, 21]
    """
    return [match.end() for match in re.finditer(r"\S[^\n]*\n", text)]


def blocks(text: str) -> list[int]:
    r"""Returns the ends of paragraphs and of blocks of code.

    Either ends with a blank line, or with a line that opens or closes a fence of three backticks.

    Example:
        >>> blocks("Add them:\n```\nx = 1\n\nprint(x)\n```\nDone")
        [14, 21, 34]
    """
    borders, says = [], False
    for match in re.finditer(r"[^\n]*\n", text):
        line = match[0].strip()
        says |= bool(line)
        if says and (not line or line.startswith("```")):
            borders.append(match.end())
            says = False
    return borders


SPLITTERS: dict[str, Splitter] = {"message": whole_message, "lines": lines, "blocks": blocks}


def token_spans(borders: Sequence[int], char_starts: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the half-open token span of each step; a token belongs to the step in which it starts.

    A step in which no token starts has no span, so that spans tile the tokens.

    Example:
        >>> token_spans([10, 21], [0, 4, 12, 20, 23])
        [(0, 2), (2, 4), (4, 5)]
    """
    step_of = [bisect_right(borders, start) for start in char_starts]
    firsts = [i for i, step in enumerate(step_of) if i == 0 or step != step_of[i - 1]]
    return list(zip(firsts, [*firsts[1:], len(step_of)], strict=True))
