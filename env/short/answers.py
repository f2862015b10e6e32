"""Short answers: what a message answers, when two answers are the same, and the key that a task is graded by.

Exact match after normalisation, as for TriviaQA (arXiv:1705.03551), but for what makes unlike answers alike
there: signs, points and slashes of numbers and `#`, `%`, `+` stay, and only a leading article goes.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pipeline.ids import canonical_json

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MARKER = re.compile(r"answer\s*:", re.IGNORECASE)
_CHOICE = re.compile(r"\(?([A-Za-z])[).:]*(?:\s+(\S.*))?", re.DOTALL)
_JOINING = "'\u2019\u2018\u00b4`"
_DECORATION = "*_`\"' \t"


def said_answer(message: str) -> str:
    r"""Returns what a message answers: after its last `Answer:`, else its last line; "" if it says nothing.

    Only what follows the last `</think>` counts, and nothing after a `<think>` that never ends.

    Example:
        >>> [said_answer(text) for text in ("So Rome.\nAnswer: **Paris**\n", "Rome, no:\nParis", "")]
        ['Paris', 'Paris', '']
    """
    body = message.rpartition("</think>")[2]
    if "<think>" in body:
        return ""
    ends = [mark.end() for mark in _MARKER.finditer(body)]
    lines = [line.strip(_DECORATION) for line in body[ends[-1] if ends else 0 :].splitlines()]
    said = [line for line in lines if line]
    return (said[0] if ends else said[-1]) if said else ""


def normal_answer(text: str) -> str:
    r"""Returns an answer in the form that is compared: small letters, single spaces, without punctuation.

    Example:
        >>> [normal_answer(text) for text in ("The Who", "U.S.A.", "Spider-Man", "1,000", "-3.5 %", "A")]
        ['who', 'usa', 'spider man', '1000', '-3.5 %', 'a']
    """
    text = unicodedata.normalize("NFKC", text).casefold().replace("\u2212", "-").replace("&", " and ")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    kept = [_kept(char, text[max(0, i - 1) : i], text[i + 1 : i + 2]) for i, char in enumerate(text)]
    words = "".join(kept).split()
    if len(words) > 1 and words[0] in ("a", "an", "the"):
        words = words[1:]
    return " ".join(words) or text.strip()


def _kept(char: str, before: str, after: str) -> str:
    """Returns what stays of a character between two others, which are "" at the ends."""
    if not unicodedata.category(char).startswith("P") or char in "#%":
        return char
    if char in _JOINING or char == ".":
        return char if char == "." and after.isdigit() else ""
    is_sign = char == "-" and (after.isdigit() or after == ".") and not before.isalnum()
    is_fraction = char == "/" and before.isdigit() and after.isdigit()
    return char if is_sign or is_fraction else " "


def chosen(answer: str, choices: Sequence[str]) -> int | None:
    """Returns which choice an answer names, by its letter, its words or both; None if that is not one.

    Example:
        >>> [chosen(text, ["Rome", "Paris"]) for text in ("b", "(B)", "B. Paris", "paris", "B) Rome", "C")]
        [1, 1, 1, 1, None, None]
    """
    if match := _CHOICE.fullmatch(answer):
        index, words = LETTERS.index(match[1].upper()), match[2]
        if index < len(choices) and words is None:
            return index
        if index < len(choices) and normal_answer(words) == normal_answer(choices[index]):
            return index
    same = [i for i, choice in enumerate(choices) if normal_answer(choice) == normal_answer(answer)]
    return same[0] if len(same) == 1 else None


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """What is right: one of `choices`, or any of `answers`."""

    answers: tuple[str, ...]  # right ones, the first the one to teach; of choices, the text of the right one
    choices: tuple[str, ...] = ()
    right: int = 0  # which choice

    def accepts(self, answer: str) -> bool:
        """Returns whether an answer is right."""
        if self.choices:
            return chosen(answer, self.choices) == self.right
        return bool(answer) and normal_answer(answer) in {normal_answer(own) for own in self.answers}

    def to_text(self) -> str:
        """Returns the key as a task's ground truth holds it."""
        if self.choices:
            return canonical_json({"choices": self.choices, "right": self.right})
        return canonical_json({"answers": self.answers})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the key of a ground truth; raises ValueError for what is none."""
        try:
            given = json.loads(text)
            if "choices" in given:
                choices, right = tuple(given["choices"]), int(given["right"])
                return cls((choices[right],), choices, right)
            return cls((given["answers"][0], *given["answers"][1:]))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"its ground_truth is no key of answers or choices ({error})") from None
