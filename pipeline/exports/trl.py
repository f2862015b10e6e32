"""TRL's data sets: prompt and completion, siblings and pairs of unlike reward, and tokens with their mask."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.manifest import read_manifest
from pipeline.columns import PAIRS
from pipeline.exports.dialogues import FACTS, FACTS_FIELDS, STOP_TOKEN, Dialogue, dialogues
from pipeline.exports.files import MESSAGES, TEXT, Part, write_card, write_parquet_rows
from pipeline.exports.selection import Selection
from pipeline.matching import CHOSEN_ABOVE, REJECTED_BELOW

_IDS = pa.list_(pa.int32())
_TOOLS = pa.field("tools", TEXT)  # as JSON, which TRL reads: schemas have no type in common
_REWARDS = [(f"{side}_reward", pa.float64()) for side in ("chosen", "rejected")]
SFT = pa.schema([("prompt", MESSAGES), ("completion", MESSAGES), _TOOLS, *FACTS_FIELDS])
TOKENS = pa.schema([("input_ids", _IDS), ("labels", _IDS), ("guided", pa.bool_()), *FACTS_FIELDS])
SIBLINGS = pa.schema(
    [
        *(("prompt", MESSAGES), ("chosen", MESSAGES), ("rejected", MESSAGES), _TOOLS, *_REWARDS),
        *(("chosen_id", TEXT), ("rejected_id", TEXT), ("task_id", TEXT), ("split", TEXT)),
    ]
)
_OF_PAIR = ["pair_id", "margin", "held_out", *(name for name, _ in _REWARDS)]
PREFERENCES = pa.schema(
    [
        *(("prompt", TEXT), ("chosen", TEXT), ("rejected", TEXT), ("task_id", TEXT), ("split", TEXT)),
        *(PAIRS.schema.field(name) for name in _OF_PAIR),
    ]
)
IGNORED = -100
"""Label of a token that no loss is taken of."""

Sets = dict[tuple[Any, ...], list[tuple[str, float]]]
"""Baseline sets: (rollout id, reward) of rollouts of equal group, attempt and prompt."""


def write_trl(selection: Selection, folder: Path) -> list[Part]:
    """Writes and returns what of `sft`, `siblings`, `tokens` and `preferences` has rows, with a card.

    Raises ArtifactError if none has.
    """
    sets: Sets = defaultdict(list)
    sft, siblings, tokens = selection, selection.again(), selection.again()
    parts = [
        _part(sft, folder, "sft", SFT, _completions(sft, sets), "graded rollouts of bare prompts"),
        _part(
            siblings, folder, "siblings", SIBLINGS, _siblings(siblings, sets),
            f"pairs of such rollouts of one prompt, rewards above {CHOSEN_ABOVE} and below {REJECTED_BELOW}",
        ),
        _part(tokens, folder, "tokens", TOKENS, _tokens(tokens), "all graded rollouts, as they were sampled"),
    ]  # fmt: skip
    if read_manifest(selection.run_dir / "preferences"):
        pairs = selection.again()
        words = "pairs of the stage preferences after one prompt, in the run's own prompt style"
        parts.append(_part(pairs, folder, "preferences", PREFERENCES, _preferences(pairs), words))
    if not any(part.rows for part in parts):
        raise selection.nothing_left("graded rollout")
    write_card(
        folder,
        f"Rollouts of the run {selection.run_dir.resolve().name}",
        [part for part in parts if part.rows],
    )
    return parts


def _part(
    selection: Selection, folder: Path, name: str, schema: pa.Schema, rows: Iterator[Any], words: str
) -> Part:
    file = f"{name}/{name}.parquet"
    number = write_parquet_rows(folder / file, schema, rows)
    if not number:
        (folder / name).rmdir()
    return selection.part(file, number, words)


def _completions(selection: Selection, sets: Sets) -> Iterator[dict[str, Any]]:
    """Yields rows of SFT; notes in `sets` who has whom for siblings."""
    for dialogue in dialogues(selection):
        facts = dialogue.facts
        key = (facts["group_id"], facts["attempt"], hash(tuple(dialogue.prompt_token_ids)))
        sets[key].append((facts["rollout_id"], facts["reward"]))
        yield {"prompt": dialogue.prompt, "completion": dialogue.completion, **_tools(dialogue), **facts}


def _tools(dialogue: Dialogue) -> dict[str, str | None]:
    opening = dialogue.opening
    return {"tools": json.dumps(opening.tools, ensure_ascii=False) if opening else None}


def _tokens(selection: Selection) -> Iterator[dict[str, Any]]:
    numbers = ["prompt_token_ids", "response_token_ids", "loss_mask"]
    for row in selection.rows([*FACTS, "guided", *numbers]):
        prompt, response, mask = (row.pop(name) for name in numbers)
        if not any(mask):
            selection.left_out["no_answer"] += 1
            continue
        labels = [token if bit else IGNORED for token, bit in zip(response, mask, strict=True)]
        row |= {"input_ids": prompt + response, "labels": [IGNORED] * len(prompt) + labels}
        yield row | {"split": selection.split_of.get(row["task_id"])}


def paired(sets: Mapping[Any, Sequence[tuple[str, float]]], left_out: Counter[str]) -> list[tuple[str, str]]:
    """Returns (chosen, rejected) ids: who has a partner in its set is in a pair, the scarcer side repeated.

    Example:
        >>> left_out = Counter()
        >>> paired({"s": [("a", 1.0), ("b", 0.0), ("c", 0.5), ("d", 0.0)], "t": [("e", 1.0)]}, left_out)
        [('a', 'b'), ('a', 'd')]
        >>> left_out
        Counter({'reward_between': 1, 'no_partner': 1})
    """
    pairs = []
    for members in sets.values():
        chosen = [name for name, reward in members if reward > CHOSEN_ABOVE]
        rejected = [name for name, reward in members if reward < REJECTED_BELOW]
        left_out["reward_between"] += len(members) - len(chosen) - len(rejected)
        if not (chosen and rejected):
            left_out["no_partner"] += len(chosen) + len(rejected)
            continue
        for i in range(max(len(chosen), len(rejected))):
            pairs.append((chosen[i % len(chosen)], rejected[i % len(rejected)]))
    return pairs


def _siblings(selection: Selection, sets: Sets) -> Iterator[dict[str, Any]]:
    """Yields rows of SIBLINGS, reading the rollouts again; holds those whose partners are still to come."""
    due: dict[str, list[tuple[str, str]]] = defaultdict(list)
    held: dict[str, Dialogue] = {}
    for pair in paired(sets, selection.left_out):
        for name in pair:
            due[name].append(pair)
    for dialogue in dialogues(selection):
        name = dialogue.facts["rollout_id"]
        if name in due:
            held[name] = dialogue
        for pair in [pair for pair in due.get(name, ()) if held.keys() >= set(pair)]:
            yield _sibling_row(held[pair[0]], held[pair[1]])
            for side in pair:
                due[side].remove(pair)
                if not due[side]:
                    del held[side]


def _sibling_row(chosen: Dialogue, rejected: Dialogue) -> dict[str, Any]:
    row = {"prompt": chosen.prompt, **_tools(chosen), **{k: chosen.facts[k] for k in ("task_id", "split")}}
    for side, dialogue in (("chosen", chosen), ("rejected", rejected)):
        row |= {
            side: dialogue.completion,
            f"{side}_id": dialogue.facts["rollout_id"],
            f"{side}_reward": dialogue.facts["reward"],
        }
    return row


def _preferences(selection: Selection) -> Iterator[dict[str, Any]]:
    """Yields rows of PREFERENCES: texts, marks of turns included, since recorded answers have no messages."""
    texts = ["chosen_prompt", "chosen_text", "rejected_text"]
    columns = ["match", "chosen_task_id", *texts, *_OF_PAIR]
    for batch in Artifact.open(selection.run_dir, "preferences").batches("pairs", columns):
        for row in batch.to_pylist():
            prompt, *answers = (row.pop(name) for name in texts)
            match, task_id = row.pop("match"), row.pop("chosen_task_id")
            split = selection.split_of.get(task_id)
            if selection.split not in (None, split):
                selection.left_out["other_split"] += 1
            elif selection.min_reward is not None and row["chosen_reward"] < selection.min_reward:
                selection.left_out["low_reward"] += 1
            elif match != "prompt":  # TRL has one prompt a row
                selection.left_out["other_prompt"] += 1
            elif not all(answer.endswith(STOP_TOKEN) for answer in answers):  # TRL would end it
                selection.left_out["cut_off"] += 1
            else:
                sides = {"chosen": answers[0], "rejected": answers[1]}
                yield {"prompt": prompt, **sides, "task_id": task_id, "split": split, **row}
