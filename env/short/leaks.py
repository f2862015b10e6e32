"""Whether a text tells a short answer, or which choice is right."""

import re

from env.feedback.leak_guard import holds_value
from env.short.answers import LETTERS, AnswerKey, normal_answer
from pipeline.types import Task

_CHOOSING = (
    "answer|option|choice|choose|pick|select|letter|is|was|been?|it's|with|for|try|use|right|correct"
    "|but|only|one"
)
"""Words after which a letter is a choice."""


def tells_answer(task: Task, text: str) -> bool:
    """Returns whether a text says a right answer, in digits or words, or names the right choice."""
    key, said = AnswerKey.from_text(task.ground_truth), f" {normal_answer(text)} "
    if any(f" {normal_answer(answer)} " in said for answer in key.answers) or holds_value(text, key.answers):
        return True
    return bool(key.choices) and names_choice(LETTERS[key.right], text)


def names_choice(letter: str, text: str) -> bool:
    """Returns whether a text names a choice by its letter: alone, in brackets, or among words that choose.

    Example:
        >>> [names_choice("B", text) for text in ("Answer: **B**", "Use (b).", "Letter: b", "In B flat")]
        [True, True, True, False]
        >>> [names_choice("A", text) for text in ("A is right.", "Try A.", "It is a pity.", "A step fails.")]
        [True, True, False, False]
    """
    either, text = f"[{letter}{letter.lower()}]", text.replace("\u2019", "'")
    named = (
        rf"(?<!\w)\({either}\)|\b{letter}\)",
        rf"\b(?i:answer|option|choice|letter)\b\W+(?:(?i:is)\W+)?{either}\b(?! \w)",
        rf"\b(?i:{_CHOOSING})\b\W+{letter}\b",
        rf"\b{letter}\W+(?i:(?:is|was|looks|seems|would be)\W+(?:right|correct|the|it)|fits|matches)\b",
        rf"\A\W*{either}\W*\Z",
    )
    return re.search("|".join(named), text) is not None
