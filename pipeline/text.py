"""Text of a model or a service is hostile until shown harmless: control characters are made visible."""

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164"
    "\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Controls, what turns text round, and what has no width: tags and fillers can hide whole sentences."""


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
