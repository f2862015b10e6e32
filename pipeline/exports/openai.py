"""OpenAI's messages as JSON lines, in the form of its fine-tuning; beside them what is known of each line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.exports.dialogues import Dialogue, dialogues
from pipeline.exports.files import Part, write_json_lines
from pipeline.exports.selection import Selection
from pipeline.types import Message


def write_openai(selection: Selection, folder: Path) -> list[Part]:
    """Writes and returns `messages.jsonl` and, line for line, `facts.jsonl`.

    Raises ArtifactError if there is no such rollout.
    """
    part = folder / "facts.jsonl.part"
    with part.open("w", encoding="utf-8") as lines:

        def rows() -> Iterator[dict[str, Any]]:
            for dialogue in _answered(selection):
                lines.write(json.dumps(dialogue.facts, ensure_ascii=False, allow_nan=False) + "\n")
                yield {"messages": dialogue.messages} | tools_of(dialogue)

        number = write_json_lines(folder / "messages.jsonl", rows())
    if not number:
        raise selection.nothing_left("graded rollout of a bare prompt that ends whole")
    part.replace(folder / "facts.jsonl")
    return [selection.part("messages.jsonl", number), Part("facts.jsonl", number)]


def tools_of(dialogue: Dialogue) -> dict[str, Any]:
    """Returns the field `tools` of a line, if its prompt listed any."""
    return {"tools": dialogue.opening.tools} if dialogue.opening else {}


def _answered(selection: Selection) -> Iterator[Dialogue]:
    for dialogue in dialogues(selection):
        if replies_to_no_call(dialogue.messages):
            selection.left_out["reply_without_call"] += 1
        else:
            yield dialogue


def replies_to_no_call(messages: list[Message]) -> bool:
    """Returns whether a tool replies that nobody called: to a call that could not be read, for instance.

    OpenAI refuses such messages.
    """
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool" and message.get("tool_call_id") not in open_calls:
            return True
        if message["role"] == "assistant":
            open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    return False
