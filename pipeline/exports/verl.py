"""verl's Parquet: the tasks of each split for reinforcement learning, dialogues for supervised training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts.artifact import Artifact
from pipeline.columns import TASKS
from pipeline.exports.dialogues import FACTS_FIELDS, dialogues
from pipeline.exports.files import MESSAGES, Part, write_parquet_rows
from pipeline.exports.selection import Selection

SFT = pa.schema([("messages", MESSAGES), *FACTS_FIELDS])


def write_verl(selection: Selection, folder: Path, *, with_rollouts: bool) -> list[Part]:
    """Writes and returns `<split>.parquet` of tasks, and `sft.parquet` of rollouts where that is wanted."""
    splits = sorted(set(selection.split_of.values()))
    parts = []
    for split in [selection.split] if selection.split else splits:
        file = f"{split}.parquet"
        number = write_parquet_rows(folder / file, TASKS.schema, _tasks(selection.run_dir, split))
        parts.append(Part(file, number, "tasks"))
    if with_rollouts:
        number = write_parquet_rows(folder / "sft.parquet", SFT, _messages(selection))
        parts.append(selection.part("sft.parquet", number, "graded rollouts of bare prompts"))
    return parts


def _tasks(run_dir: Path, split: str) -> Iterator[dict[str, Any]]:
    for batch in Artifact.open(run_dir, "tasks").batches("tasks"):
        yield from (row for row in batch.to_pylist() if row["split"] == split)


def _messages(selection: Selection) -> Iterator[dict[str, Any]]:
    """Yields rows of SFT; tools are told by a system message.

    verl would read schemas as a column, where all of them get all fields that any has, null where it has none.
    """
    for dialogue in dialogues(selection):
        messages = dialogue.messages
        if dialogue.opening:
            others = [message for message in messages if message["role"] != "system"]
            messages = [{"role": "system", "content": dialogue.opening.system}, *others]
        yield {"messages": messages, **dialogue.facts}
