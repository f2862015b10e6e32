"""One rollout with all that is known of it, as the page shows it; and its tokens, for whoever asks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from pipeline.columns import ROLLOUTS, STEPS
from pipeline.text import visible
from pipeline.view.index import StageIndex
from pipeline.view.run import Run

TOKENS = ("prompt_token_ids", "response_token_ids", "loss_mask", "logprobs")
WORDS = tuple(name for name in ROLLOUTS.schema.names if name not in TOKENS)
SEARCHED = (
    "messages.list.element.content",
    "messages.list.element.tool_calls",
    *("rollout_id", "task_id", "feedback_in_context", "feedback_text"),
)


def shown(value: Any) -> Any:
    """Returns a value for JSON: control and direction characters are spelled out, NaN and infinity null."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {key: shown(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shown(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def rollouts_at(run: Run, index: StageIndex, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Returns rollouts with their steps, values, labels and measured states; IndexError for no such row."""
    found = []
    step_names = [name for name in STEPS.schema.names if name != "rollout_id"]
    children = [index.steps.rows(row).tolist() for row in rows]
    steps = iter(index.tables["steps"].rows([number for own in children for number in own], step_names))
    rollouts = index.tables["rollouts"].rows(rows, WORDS)
    ids = [rollout["rollout_id"] for rollout in rollouts]
    known = run.labels_of(index.stage, ids), run.continued(index.stage, ids)
    for row, rollout, own, labels, measured in zip(rows, rollouts, children, *known, strict=True):
        values, task = _values_at(index, row), int(index.task_rows[row])
        rollout["row"] = row
        rollout["split"] = index.tasks.splits[task].as_py() if task >= 0 else "?"
        rollout["level"] = index.tasks.levels[task].as_py() if task >= 0 else None
        rollout["steps"] = [
            {
                **step,
                "value": values.get(step["step_index"]),
                "measured": measured.get(step["step_index"]),
                "label": labels.get(step["step_index"]),
            }
            for step in (next(steps) for _ in own)
        ]
        found.append(shown(rollout))
    return found


def _values_at(index: StageIndex, row: int) -> dict[int, float]:
    if index.values is None:
        return {}
    children, steps, values = index.values
    own = children.rows(row)
    return dict(zip(steps[own].tolist(), values[own].tolist(), strict=True))


def tokens_at(run: Run, index: StageIndex, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Returns of each rollout its prompt as the engine was given it, and its response token by token.

    A token is (text or id, log-probability; null where nobody sampled it or nobody knows). Without the
    tokenizer that encoded the rollout there are ids alone, and `note` says so.
    """
    found = index.tables["rollouts"].rows(rows, (*TOKENS, "tokenizer_digest"))
    return [shown(_tokens(row, run.tokenizer(row["tokenizer_digest"]))) for row in found]


def _tokens(row: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    prompt, response = row["prompt_token_ids"], row["response_token_ids"]
    logprobs = row["logprobs"] or [None] * len(response)
    return {
        "note": "" if tokenizer else "The run has no such tokenizer, so these are ids.",
        "prompt": tokenizer.decode(prompt, skip_special_tokens=False) if tokenizer else str(prompt),
        "tokens": [
            [_text(token, tokenizer), logprob if sampled else None]
            for token, sampled, logprob in zip(response, row["loss_mask"], logprobs, strict=True)
        ],
    }


def _text(token: int, tokenizer: Any) -> str:
    """Returns a token as text; one that is a part of a character, as the tokenizer spells it."""
    if tokenizer is None:
        return f"{token} "
    decoded = tokenizer.decode([token], skip_special_tokens=False)
    return decoded if decoded and "\ufffd" not in decoded else tokenizer.id_to_token(token) or f"<{token}>"


def matching(index: StageIndex, text: str) -> list[int]:
    """Returns the rows of rollouts that say a text, in any case: in messages, calls, feedback or ids."""
    found: list[int] = []
    for first, batch in index.tables["rollouts"].batches(SEARCHED):
        says = np.zeros(batch.num_rows, bool)
        messages = batch.column("messages")
        owners = pc.list_parent_indices(messages).to_numpy()
        for field in ("content", "tool_calls"):
            says[owners[_says(messages.flatten().field(field), text)]] = True
        for name in SEARCHED[2:]:
            says |= _says(batch.column(name), text)
        found += (np.flatnonzero(says) + first).tolist()
    return found


def _says(values: Any, text: str) -> np.ndarray:
    hits = pc.match_substring(values, text, ignore_case=True).fill_null(False)
    return hits.to_numpy(zero_copy_only=False)
