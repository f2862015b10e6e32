"""Text as people read it: numbers of things in words, and control characters made visible.

Text of a model or a service is hostile until shown harmless.
"""

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Controls, what turns text round, and what has no width: tags and fillers can hide whole sentences.

U+FE0F alone stays: it gives emoji their colour.
"""


def counted(number: int, things: str) -> str:
    """Returns a number of things in words, of their plural.

    Example:
        >>> counted(1, "policies"), counted(1, "rollouts"), counted(1200, "tasks")
        ('1 policy', '1 rollout', '1200 tasks')
    """
    one = f"{things[:-3]}y" if things.endswith("ies") else things.removesuffix("s")
    return f"{number} {one if number == 1 else things}"


def visible(text: str) -> str:
    r"""Returns text in which control and direction characters, newline and tab apart, are spelled out.

    Example:
        >>> visible("red: \x1b[31m, stop: \u202e")
        'red: ␛[31m, stop: <U+202E>'
    """

    def spell(match: re.Match[str]) -> str:
        code = ord(match[0])
        return chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>"

    return _HIDDEN.sub(spell, text)
