r"""Where an answer stands: in a box, or behind a mark that the prompt asks for, `####` or `Answer:`."""

import re

GSM8K_MARK = "####"
"""Behind it gsm8k's solutions give their answer."""
_BOX = re.compile(r"\bboxed\b|\\fbox\b")
_ASKED = {
    GSM8K_MARK: re.compile(r"(?<!#)####(?!#)"),
    "Answer:": re.compile(r"\b(?:Answer|ANSWER|[Ff]inal answer)[*_]*\s*:"),
}
_DECORATION = "*_` \t\r"


def asks_for_box(prompt: str) -> bool:
    """Returns whether a prompt asks for the answer in a box."""
    return _BOX.search(prompt) is not None


def asked_mark(prompt: str) -> str:
    r"""Returns the mark that a prompt asks to put before the answer, "" if it names none.

    A prompt that ends with `Answer:` asks for none: what follows it is the answer itself.

    Example:
        >>> [asked_mark(text) for text in ('End with "####".', "Say Answer: $Answer.", "2 + 2?\nAnswer:")]
        ['####', 'Answer:', '']
    """
    for mark, pattern in _ASKED.items():
        named = list(pattern.finditer(prompt))
        if named and (mark == GSM8K_MARK or prompt[named[-1].end() :].strip(f"{_DECORATION}\n")):
            return mark
    return ""


def behind(mark: str, text: str) -> str | None:
    r"""Returns the rest of the line behind the last mark, however that is set in type; None if there is none.

    Example:
        >>> [behind("Answer:", text) for text in ("**Answer:** 34", "**answer**: $3$.", "Answer:\n`4`", "34")]
        ['34', '$3$', '4', None]
    """
    pattern = re.escape(mark).replace(":", r"[*_]*\s*:")  # bold type may end before the colon
    parts = re.split(pattern, text, flags=re.IGNORECASE)
    if len(parts) == 1:
        return None
    return parts[-1].lstrip(f"{_DECORATION}\n").split("\n")[0].rstrip(f"{_DECORATION}.") or None
