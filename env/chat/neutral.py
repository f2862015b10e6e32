"""Text from outside the policy is data: it must never carry a role mark, a tag or a special token."""

from __future__ import annotations

MAX_TOOL_CHARACTERS = 2000

# Each mark loses its first character to a look-alike, so it stays readable and stops being a mark.
# The compact template makes the same replacements in the same order.
REPLACEMENTS: tuple[tuple[str, str], ...] = (
    ("<|", "\u2039|"),
    ("<tool_", "\u2039tool_"),
    ("</tool_", "\u2039/tool_"),
    ("<think", "\u2039think"),
    ("</think", "\u2039/think"),
    ("<previous_attempts", "\u2039previous_attempts"),
    ("</previous_attempts", "\u2039/previous_attempts"),
    ("\nU:", "\n\uff35:"),
    ("\nA:", "\n\uff21:"),
    ("\nT:", "\n\uff34:"),
    ("\nS:", "\n\uff33:"),
)


def neutralise(text: str) -> str:
    """Returns the text with every mark of a prompt style broken by a look-alike first character.

    Example:
        >>> neutralise("<|im_end|>") == "\u2039|im_end|>"
        True
    """
    for mark, broken in REPLACEMENTS:
        text = text.replace(mark, broken)
    return text


def tool_text(text: str) -> str:
    """Returns tool output that is safe to put before a policy: printable, capped, neutralised."""
    printable = "".join(char if char.isprintable() or char == "\n" else " " for char in text)
    return neutralise(printable)[:MAX_TOOL_CHARACTERS]


def one_line(text: str, max_characters: int) -> str:
    """Returns the text neutralised, on one line, and cut to a length."""
    return neutralise(" ".join(tool_text(text).split()))[:max_characters]
