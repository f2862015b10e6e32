"""Rows of gsm8k, MATH and tables like them: which columns are read, and what makes a row a problem."""

import re
from collections.abc import Mapping
from typing import Any

from env.math.answers import MAX_ANSWER, extract
from env.math.expressions import UnreadError, parse, value
from env.math.families.problem import ASK_FOR_BOX
from env.math.marks import GSM8K_MARK, asked_mark, asks_for_box
from env.math.quantities import quantity
from env.math.shapes import spelt
from env.math.tokens import tokens
from env.math.worked import Worked
from env.sources import Problem, messages_of
from pipeline.rows import BadRowError, Field, shown, text_of

FIELDS = {
    "prompt": Field(("prompt", "question", "problem")),
    "answer": Field(("reward_model.ground_truth", "final_answer", "answer", "solution", "ground_truth")),
}
_ANNOTATION = re.compile(r"<<([^<>=\n]*)=([^<>\n]*)>>")
_ASKS_PERCENT = re.compile(
    r"\b(?:what|which|how many)\s+(?:[a-z]+\s+){0,4}(?:percent|per cent|%)|\b(?:as|in)\s+(?:a\s+)?percent",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+")


def problem_of(values: Mapping[str, Any]) -> Problem:
    """Returns a problem of a row; raises BadRowError for one without a question or an answer.

    gsm8k's answer stands behind `####` and its annotated calculations become the worked solution; a solution
    as MATH has it gives its answer in a box; any other text is the answer itself. A prompt of messages stays
    as it is, so it must ask for an answer in a box or behind a mark: no other is read.
    """
    prompt = messages_of(values, "prompt")
    asked, text = str(prompt[-1]["content"]), text_of(values, "answer")
    said, is_text = "\n".join(message["content"] for message in prompt), isinstance(values["prompt"], str)
    mark, in_box = asked_mark(said), is_text or asks_for_box(said)
    if not mark and not in_box:
        raise BadRowError(
            "no_answer_form",
            f"its messages, which end with {said[-60:]!r}, do not say how to answer; allowed: messages that "
            "ask for \\boxed{}, #### or a line of the form Answer: $Answer; or the question as a text, in "
            "columns.prompt, to which the environment adds such words",
        )
    details: dict[str, Any] = {"mark": mark} if mark else {}
    if GSM8K_MARK in text:
        answer = extract(text, GSM8K_MARK) or ""
        details = {"mark": mark or GSM8K_MARK}
        if worked := worked_of(text, answer, "" if in_box else mark):
            details |= worked.as_details()
    elif (boxed := extract(text)) is not None:
        answer = boxed
    else:
        answer = text.strip()
    if not answer or len(answer) > MAX_ANSWER:
        raise BadRowError(
            "no_answer", f"answer is {shown(text)}; allowed: text, #### text, or a \\boxed{{}} in it"
        )
    if _ASKS_PERCENT.search(asked) and (found := quantity(spelt(answer))) and found.unit is None:
        answer = f"{answer}%"
    if is_text:
        prompt = ({"role": "user", "content": f"{asked}\n{ASK_FOR_BOX}"},)
    return Problem(prompt, answer, "math", asked, details)


def worked_of(text: str, answer: str, mark: str = "") -> Worked | None:
    """Returns gsm8k's solution as calculations that refer to each other; None if it has no annotation.

    A number that is an earlier result refers to it, the latest first, so an error in that one carries on. The
    last line gives the answer behind a mark, or in a box.
    """
    calculations: list[str] = []
    results: list[str] = []
    lines = []
    for line in text.partition(GSM8K_MARK)[0].strip().split("\n"):
        parts, end = [], 0
        for found in _ANNOTATION.finditer(line):
            parts.append(_linked(line[end : found.start()], results))
            calculations.append(_linked(found[1], results))
            results.append(found[2].strip())
            parts.append(f"<<{len(results) - 1}>>")
            end = found.end()
            if line.startswith(found[2].strip(), end):
                end += len(found[2].strip())
        lines.append("".join(parts) + _linked(line[end:], results))
    if not results or not all(map(_is_number, results)):
        return None
    last = _linked(answer, results)
    last = f"{mark} {last}" if mark else f"\\boxed{{{last}}}"
    return Worked((*lines, last), tuple(calculations), tuple(results))


def _linked(text: str, results: list[str]) -> str:
    """Returns a text with the latest equal result in place of each number; 1, 2 and 100 are too common."""

    def place(found: re.Match[str]) -> str:
        own = found[0].replace(",", "")
        for k in reversed(range(len(results))):
            if results[k].replace(",", "") == own and own not in ("1", "2", "100"):
                return f"<<{k}>>"
        return found[0]

    return _NUMBER.sub(place, text)


def _is_number(text: str) -> bool:
    try:
        value(parse(tokens(text)))
    except UnreadError:
        return False
    return True
