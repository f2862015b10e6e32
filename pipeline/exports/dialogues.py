"""Rollouts as dialogues: what opened them, what was said after it, and the tools that the prompt told of."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.artifacts.artifact import Artifact
from pipeline.columns import ROLLOUTS
from pipeline.errors import ArtifactError
from pipeline.exports.selection import Selection
from pipeline.tables import message_from
from pipeline.types import Message

STOP_TOKEN = "<|im_end|>"
"""Ends every message, in all prompt styles."""
FACTS = (
    *("rollout_id", "task_id", "group_id", "iteration", "attempt", "draw", "kind", "reward", "cost"),
    *("finish_reason", "env_status", "policy_digest"),
)
"""Columns that a row keeps in every form."""
FACTS_FIELDS = (*(ROLLOUTS.schema.field(name) for name in FACTS), pa.field("split", pa.string()))
_SYSTEM, _CALL, _END_THINK = "<|im_start|>system\n", "<tool_call>", "</think>"
_CALLS = re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Opening:
    """A system message that lists tools, in the form of Qwen3 and Hermes."""

    system: str  # as the prompt had it
    tools: list[dict[str, Any]]  # OpenAI's schemas


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A graded rollout from a bare prompt, whose last message is the policy's, and whole."""

    facts: dict[str, Any]  # FACTS, and the task's split
    prompt: list[Message]  # before the policy's first message
    completion: list[Message]  # from then on
    opening: Opening | None  # None: the prompt listed no tools
    prompt_token_ids: list[int]

    @property
    def messages(self) -> list[Message]:
        """All of it."""
        return self.prompt + self.completion


class PromptReader:
    """The tokenizer of a run, as far as an export asks it."""

    def __init__(self, run_dir: Path) -> None:
        file = Artifact.open(run_dir, "sft").path("policy/tokenizer.json")
        self._tokenizer = Tokenizer.from_file(str(file))
        stop_id = self._tokenizer.token_to_id(STOP_TOKEN)
        if stop_id is None:
            raise ArtifactError(
                f"the tokenizer in {run_dir}/sft/policy has no token {STOP_TOKEN}, which ends messages. Run: "
                "make sft"
            )
        self.stop_id: int = stop_id
        self._seen: dict[tuple[int, ...], Opening | None] = {}

    def opening(self, prompt: Sequence[int]) -> Opening | None:
        """Returns the tools that a prompt lists; those of a level share one text."""
        first = tuple(prompt[: prompt.index(self.stop_id)]) if self.stop_id in prompt else ()
        if first not in self._seen:
            self._seen[first] = opening_in(self._tokenizer.decode(list(first), skip_special_tokens=False))
        return self._seen[first]


def opening_in(text: str) -> Opening | None:
    r"""Returns the tools in the first message of a prompt, one JSON object a line; None: it lists none.

    Example:
        >>> opening_in('<|im_start|>system\nBe brief.\n<tools>\n{"type": "function"}\n</tools>').tools
        [{'type': 'function'}]
        >>> opening_in("<|im_start|>user\n<tools>\n{}\n</tools>")
    """
    listed, closed, _ = text.rpartition("\n</tools>")
    _, opened, lines = listed.rpartition("<tools>\n")
    if not (text.startswith(_SYSTEM) and opened and closed):
        return None
    try:
        return Opening(text.removeprefix(_SYSTEM), [json.loads(line) for line in lines.split("\n")])
    except ValueError:
        return None


def dialogues(selection: Selection) -> Iterator[Dialogue]:
    """Yields the rollouts that a dialogue can say, and counts the others.

    Feedback in a prompt is not in its messages, a continuation's messages are another rollout's in part, a
    message that was cut off in the middle would be shown as whole, and words after a call would be lost.
    Replies after the policy's last message answer nobody, and are no part of the rollout's tokens: they are
    left off.
    """
    reader = PromptReader(selection.run_dir)
    columns = [*FACTS, "guided", "messages", "prompt_token_ids", "response_token_ids"]
    for row in selection.rows(columns):
        if kind := _why_not(row, reader.stop_id):
            selection.left_out[kind] += 1
            continue
        messages = [message_from(message) for message in row["messages"]]
        said = places_said(messages)[-selection.num_said[row["rollout_id"]] :]
        own = messages[said[0] : said[-1] + 1]
        if any(map(has_words_after_call, own)):
            selection.left_out["words_after_call"] += 1
            continue
        yield Dialogue(
            facts={name: row[name] for name in FACTS} | {"split": selection.split_of.get(row["task_id"])},
            prompt=messages[: said[0]],
            completion=[without_text_of_calls(message) for message in own],
            opening=reader.opening(row["prompt_token_ids"]),
            prompt_token_ids=row["prompt_token_ids"],
        )


def places_said(messages: Sequence[Message]) -> list[int]:
    """Returns the places of an assistant's messages, those of the task's own prompt included."""
    return [place for place, message in enumerate(messages) if message["role"] == "assistant"]


def _why_not(row: Mapping[str, Any], stop_id: int) -> str | None:
    if row["kind"] not in ("whole", "recorded"):
        return str(row["kind"])
    if row["guided"]:
        return "guided"
    if not row["response_token_ids"]:
        return "no_answer"
    return None if row["response_token_ids"][-1] == stop_id else "cut_off"


def without_text_of_calls(message: Message) -> Message:
    r"""Returns a message whose content leaves out the calls that it holds as text in the form of Qwen3.

    A chat template writes them again, after a newline. In other styles the content stays as it was sampled.

    Example:
        >>> call = {"function": {"name": "f", "arguments": "{}"}}
        >>> text = 'Well.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
        >>> without_text_of_calls({"role": "assistant", "content": text, "tool_calls": [call]})["content"]
        'Well.'
    """
    content, at = message.get("content") or "", _place_of_call(message)
    return message if at < 0 else {**message, "content": content[:at].removesuffix("\n") or None}


def has_words_after_call(message: Message) -> bool:
    r"""Returns whether a message says something after a call, for which OpenAI's form has no place.

    Example:
        >>> call = {"function": {"name": "f", "arguments": "{}"}}
        >>> text = 'Well.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        >>> has_words_after_call({"role": "assistant", "content": text, "tool_calls": [call]})
        False
        >>> has_words_after_call({"role": "assistant", "content": text + "Now I wait.", "tool_calls": [call]})
        True
    """
    at = _place_of_call(message)
    return at >= 0 and bool(_CALLS.sub("", message["content"][at:]).strip())


def _place_of_call(message: Message) -> int:
    """Returns where the first call stands in a message's content, -1: nowhere."""
    content = message.get("content") or ""
    return content.find(_CALL, content.rfind(_END_THINK) + 1) if message.get("tool_calls") else -1
