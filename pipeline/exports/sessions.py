"""What an agent's logs would hold of a run's rollouts: messages and a grade, nothing of their sampling."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.exports.dialogues import places_said
from pipeline.exports.files import Part, write_json_lines
from pipeline.exports.selection import Selection
from pipeline.tables import message_from

COLUMNS = ["rollout_id", "kind", "task_id", "guided", "messages", "reward", "env_status"]


def sessions_in(selection: Selection) -> Iterator[dict[str, Any]]:
    """Yields a session for each graded rollout that was played from a bare prompt, and counts the others.

    Feedback in a prompt is not in the messages: a guided rollout would seem to know things from nowhere.
    A session does not say which of an assistant's messages are the task's own.
    """
    for row in selection.rows(COLUMNS):
        if row["kind"] not in ("whole", "recorded"):
            selection.left_out[row["kind"]] += 1
        elif row["guided"]:
            selection.left_out["guided"] += 1
        elif len(places_said(row["messages"])) > selection.num_said.get(row["rollout_id"], 0):
            selection.left_out["answer_in_prompt"] += 1
        else:
            yield {
                "session_id": row["rollout_id"],
                "task_id": row["task_id"],
                "messages": [message_from(message) for message in row["messages"]],
                "reward": row["reward"],
            }


def write_sessions(selection: Selection, folder: Path) -> list[Part]:
    """Writes and returns `sessions.jsonl`; raises ArtifactError if no session is left."""
    number = write_json_lines(folder / "sessions.jsonl", sessions_in(selection))
    if not number:
        raise selection.nothing_left("graded rollout of a bare prompt")
    return [selection.part("sessions.jsonl", number)]
