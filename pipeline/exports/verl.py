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


def write_verl(selection: Selection, folder: Path) -> list[Part]:
    """Writes and returns the files of `write_tasks`, and `sft.parquet` of rollouts."""
    parts = write_tasks(selection, folder)
    number = write_parquet_rows(folder / "sft.parquet", SFT, _messages(selection))
    return [*parts, selection.part("sft.parquet", number, "graded rollouts of bare prompts")]


def write_tasks(selection: Selection, folder: Path) -> list[Part]:
    """Writes and returns `<split>.parquet` for each split that tasks have, or for the one asked for."""
    parts = []
    for split in sorted({selection.split} if selection.split else set(selection.split_of.values())):
        file = f"{split}.parquet"
        number = write_parquet_rows(folder / file, TASKS.schema, _tasks(selection.run_dir, split))
        parts.append(Part(file, number, "tasks"))
    return parts


def _tasks(run_dir: Path, split: str) -> Iterator[dict[str, Any]]:
    for batch in Artifact.open(run_dir, "tasks").batches("tasks"):
        yield from (row for row in batch.to_pylist() if row["split"] == split)


def _messages(selection: Selection) -> Iterator[dict[str, Any]]:
    """Yields rows of SFT; tools are told by a system message.

    As a column that verl reads, each schema would get the fields of all others, null where it has none.
    """
    for dialogue in dialogues(selection):
        messages = dialogue.messages
        if dialogue.opening:
            others = [message for message in messages if message["role"] != "system"]
            messages = [{"role": "system", "content": dialogue.opening.system}, *others]
        yield {"messages": messages, **dialogue.facts}
