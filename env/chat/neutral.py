"""Text from outside the policy is data: it must never carry a role mark, a tag or a special token."""

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
    """Returns the texts that a fast transformers tokenizer reads as one token each, special or not, sorted.

    Raises ConfigError if it looks for one in normalised text, which text that nobody breaks could become.
    """
    normaliser = tokenizer.backend_tokenizer.normalizer
    tokens = {str(token): token for token in tokenizer.added_tokens_decoder.values()}
    for text, token in sorted(tokens.items()):
        if token.normalized and normaliser is not None and not text.isspace():
            raise ConfigError(
                f"the tokenizer looks for its added token {text!r} in what {type(normaliser).__name__} makes "
                "of a text, so tool output could hold it unseen. Allowed: no normaliser, or normalized=False "
                "in its tokenizer.json. Next: set that, or use another tokenizer"
            )
    return tuple(sorted(tokens))


def added_replacements(tokens: Iterable[str]) -> Replacements:
    """Returns what breaks a tokenizer's added tokens beyond what `REPLACEMENTS` breaks, the longest first.

    Blanks that are tokens of their own are left: they are no marks, and all text has them. Raises ConfigError
    if a token holds a look-alike, so that breaking another one could make it.
    """
    left = {token for token in tokens if not token.isspace() and token and neutralise(token) == token}
    marks, broken_marks = (set("".join(texts)) for texts in zip(*REPLACEMENTS, strict=True))
    looks = (broken_marks - marks) | {*_LOOK_ALIKES.values(), _ANY_OTHER}
    for token in sorted(tokens):
        if looks & set(token):
            raise ConfigError(
                f"the tokenizer's added token {token!r} holds one of {' '.join(sorted(looks))}, with which "
                "tool output is made harmless. Use a tokenizer without it"
            )
    return tuple((token, _broken(token)) for token in sorted(left, key=lambda token: (-len(token), token)))


def neutralise(text: str, added: Replacements = ()) -> str:
    """Returns the text with every mark of a prompt style, and every added token, broken by look-alikes.

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


def _broken(token: str) -> str:
    """Returns a token with both ends replaced: two that overlap, as in `|||A|||A|||`, share only an end."""
    last = _LOOK_ALIKES.get(token[-1], _ANY_OTHER) if len(token) > 1 else ""
    return _LOOK_ALIKES.get(token[0], _ANY_OTHER) + token[1:-1] + last
