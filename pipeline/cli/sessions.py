"""What an agent's logs would hold of a run's rollouts: messages and a grade, nothing of their sampling."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts.artifact import Artifact
from pipeline.errors import ArtifactError

COLUMNS = ["rollout_id", "kind", "task_id", "guided", "messages", "reward"]


def sessions_in(table: pa.Table, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yields a session for each graded rollout that was played from a bare prompt, and counts the others.

    Feedback in a prompt is not in the messages: a guided rollout would seem to know things from nowhere.
    """
    for batch in table.select(COLUMNS).to_batches(max_chunksize=1000):
        for row in batch.to_pylist():
            if row["kind"] not in ("whole", "recorded"):
                left_out["continuation"] += 1
            elif row["guided"]:
                left_out["guided"] += 1
            elif row["reward"] is None:
                left_out["ungraded"] += 1
            else:
                yield {
                    "session_id": row["rollout_id"],
                    "task_id": row["task_id"],
                    "messages": [_message(message) for message in row["messages"]],
                    "reward": row["reward"],
                }


def write_sessions(run_dir: Path, file: Path) -> tuple[int, Counter[str]]:
    """Writes the sessions of a run's stage `rollouts` as JSON lines; returns how many, and who is left out.

    Raises ArtifactError if none is left.
    """
    left_out, number, part = Counter[str](), 0, file.with_suffix(".part")
    with part.open("w", encoding="utf-8") as lines:
        for session in sessions_in(Artifact.open(run_dir, "rollouts").table("rollouts"), left_out):
            lines.write(json.dumps(session, ensure_ascii=False) + "\n")
            number += 1
    if not number:
        part.unlink()
        raise ArtifactError(
            f"{run_dir} has no graded rollout of a bare prompt ({dict(left_out)}). Next: play some, with "
            "rollouts.chain.feedback_free_share above 0 or one attempt alone"
        )
    part.replace(file)  # whoever finds the file finds all of it
    return number, left_out


def _message(row: Mapping[str, Any]) -> dict[str, Any]:
    message = {name: value for name, value in row.items() if value is not None}
    if "tool_calls" in message:
        message["tool_calls"] = json.loads(message["tool_calls"])
    return message
