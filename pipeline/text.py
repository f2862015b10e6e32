"""Text of a model or a service is hostile until shown harmless: control characters are made visible."""

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


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
