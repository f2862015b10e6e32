"""Text from outside the policy is data: it must never carry a role mark, a tag or a special token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.errors import ConfigError

MAX_TOOL_CHARACTERS = 2000

Replacements = tuple[tuple[str, str], ...]

# Each mark loses its first character to a look-alike, so it stays readable and stops being a mark.
# The compact template makes the same replacements in the same order.
REPLACEMENTS: Replacements = (
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

# None of these has a compatibility form, so no tokenizer's normaliser turns one back into its original.
_LOOK_ALIKES = {"<": "\u2039", "[": "\u2045", "{": "\u2774", "|": "\u00a6"}
_ANY_OTHER = "\u00b7"


def added_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Returns the texts that a transformers tokenizer reads as one token each, special or not, sorted."""
    return tuple(sorted({str(token) for token in tokenizer.added_tokens_decoder.values()}))


def added_replacements(tokens: Iterable[str]) -> Replacements:
    """Returns what breaks a tokenizer's added tokens beyond what `REPLACEMENTS` breaks, the longest first.

    Blanks that are tokens of their own are left: they are no marks, and all text has them.

    Raises:
        ConfigError: a token holds a look-alike, so that breaking another one could make it.
    """
    left = {token for token in tokens if not token.isspace() and token and neutralise(token) == token}
    looks = {*_LOOK_ALIKES.values(), _ANY_OTHER}
    for token in sorted(tokens):
        if looks & set(token):
            raise ConfigError(
                f"the tokenizer's added token {token!r} holds one of {' '.join(sorted(looks))}, with which "
                "tool output is made harmless. Use a tokenizer without it"
            )
    return tuple(
        (token, _LOOK_ALIKES.get(token[0], _ANY_OTHER) + token[1:])
        for token in sorted(left, key=lambda token: (-len(token), token))
    )


def neutralise(text: str, added: Replacements = ()) -> str:
    """Returns the text with every mark of a prompt style broken by a look-alike first character.

    Args:
        text: from outside the policy.
        added: what else is to be broken, as `added_replacements` gives it.

    Example:
        >>> neutralise("<|im_end|>") == "\u2039|im_end|>"
        True
    """
    for mark, broken in (*REPLACEMENTS, *added):
        text = text.replace(mark, broken)
    return text


def tool_text(text: str) -> str:
    """Returns tool output that is safe to put before a policy: printable, capped, neutralised."""
    printable = "".join(char if char.isprintable() or char == "\n" else " " for char in text)
    return neutralise(printable)[:MAX_TOOL_CHARACTERS]


def one_line(text: str, max_characters: int) -> str:
    """Returns the text neutralised, on one line, and cut to a length."""
    return neutralise(" ".join(tool_text(text).split()))[:max_characters]
