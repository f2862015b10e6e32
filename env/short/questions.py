"""Rows to questions: which columns are read, and what makes a row one that can be graded."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from env.short.answers import LETTERS, AnswerKey
from env.sources import Problem, messages_of
from pipeline.rows import BadRowError, Field, shown

FIELDS = {
    "prompt": Field(("prompt", "question", "problem")),
    "answer": Field(
        ("reward_model.ground_truth", "answer", "answers", "answerKey", "solution", "ground_truth", "target")
    ),
    "choices": Field(("choices", "options"), required=False),
}
MAX_CHARACTERS = 100
"""Of a short answer: nobody writes a longer one the same way twice."""
SAY_TEXT = 'End with a line "Answer: " and the answer alone.'
SAY_LETTER = 'End with a line "Answer: " and the letter alone.'


def problem_of(values: Mapping[str, Any]) -> Problem:
    """Returns the question of a row; BadRowError for one without an answer that can be compared.

    A prompt of messages stays as it is; a text gets the choices, if there are any, and how to answer.
    """
    prompt, choices = messages_of(values, "prompt"), values["choices"]
    if choices is None:
        key, ability, listed, say = AnswerKey(answers_of(values["answer"])), "short_text", "", SAY_TEXT
    else:
        key = key_of_choices(choices, values["answer"])
        lines = (f"\n{letter}) {text}" for letter, text in zip(LETTERS, key.choices, strict=False))
        ability, listed, say = "multiple_choice", "".join(lines), SAY_LETTER
    if not isinstance(values["prompt"], str):
        return Problem(prompt, key.to_text(), ability)
    asked = values["prompt"].strip()
    prompt = ({"role": "user", "content": f"{asked}{listed}\n\n{say}"},)
    return Problem(prompt, key.to_text(), ability, asked)


def answers_of(value: Any) -> tuple[str, ...]:
    """Returns the right answers of a row, the one to teach first; BadRowError if that is too long.

    A text, a number, yes or no, a list of texts or numbers, or a table with `value` and `aliases` (trivia_qa)
    or `text` (squad).

    Example:
        >>> [answers_of(value) for value in ({"value": "Paris", "aliases": ["Lutetia"]}, 4.0, True)]
        [('Paris', 'Lutetia'), ('4',), ('yes', 'true')]
    """
    if isinstance(value, bool):
        return ("yes", "true") if value else ("no", "false")
    if isinstance(value, Mapping):
        own = value.get("value", value.get("text"))
        first = own if isinstance(own, list) else [own]
        found = [*first, *(value.get("aliases") or ())]
    else:
        found = value if isinstance(value, list) else [value]
    texts = [_text(answer) for answer in found]
    if not texts or not _is_short(texts[0]):
        raise BadRowError(
            "bad_answer",
            f"answer is {shown(value)}; allowed: a text on one line of at most {MAX_CHARACTERS} characters, "
            "a number, yes or no, several texts, or a table with value and aliases",
        )
    return tuple(dict.fromkeys(text.strip() for text in texts if _is_short(text)))


def key_of_choices(value: Any, answer: Any) -> AnswerKey:
    """Returns the key of a multiple-choice row; BadRowError unless its answer names one of its choices.

    Choices are a list, or a table with `text` and `label` (ai2_arc). The answer is a place from 0 (mmlu), a
    label, by default A, B, ..., or the text of one choice.
    """
    labels: Sequence[Any] = LETTERS
    if isinstance(value, Mapping):
        value, labels = value.get("text"), value.get("label") or LETTERS
    texts = [_text(choice) for choice in value] if isinstance(value, list) else []
    if not 2 <= len(texts) <= len(LETTERS) or not all(text.strip() for text in texts):
        raise BadRowError(
            "bad_choices",
            f"choices are {shown(value)}; allowed: 2 to {len(LETTERS)} texts, as a list or as text and label",
        )
    own = list(labels)[: len(texts)]
    if isinstance(answer, int) and not isinstance(answer, bool):
        found = [answer] if 0 <= answer < len(texts) else []
    elif answer in own:
        found = [own.index(answer)]
    else:
        found = [i for i, text in enumerate(texts) if text == answer]
    if len(found) != 1:
        raise BadRowError(
            "bad_answer",
            f"answer is {shown(answer)}; allowed: a place from 0 to {len(texts) - 1}, one of "
            f"{', '.join(map(str, own))}, or the text of one choice",
        )
    return AnswerKey((texts[found[0]],), tuple(texts), found[0])


def _text(value: Any) -> str:
    """Returns a text, or a number as people write it; "" for anything else."""
    if isinstance(value, float) and isfinite(value):
        return str(int(value) if value.is_integer() else value)
    return value if isinstance(value, str) else str(value) if type(value) is int else ""


def _is_short(text: str) -> bool:
    return bool(text.strip()) and len(text) <= MAX_CHARACTERS and "\n" not in text.strip()
