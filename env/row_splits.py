"""What becomes of rows once each is a problem: what is there twice goes, splits are made by cluster."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.errors import ConfigError
from pipeline.ids import seed_of
from pipeline.rows import LeftOut, normal_text
from pipeline.types import Message

SPLITS = {"test": "test", "val": "val", "validation": "val", "dev": "val", "train": "train"}
"""What a row may call its split -> ours, held-out ones first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a family makes of a row: a task but for its place among others."""

    prompt: tuple[Message, ...]
    ground_truth: str
    ability: str
    asked: str = ""  # the row's own words, where the prompt says more; recorded solutions may name them
    details: dict[str, Any] = field(default_factory=dict)


class Candidate(NamedTuple):
    """A problem, and where its row wants it to be."""

    source: str  # its row's, with the row's number: of many rows not more is kept
    number: int
    split: str  # "" if nobody names it
    cluster: str
    level: int
    problem: Problem


def words_of(prompt: Iterable[Message]) -> str:
    """Returns what a prompt says, in a form that two prompts which say the same have in common."""
    return normal_text(" ".join(message["content"] for message in prompt))


def apart(found: Iterable[Candidate]) -> tuple[list[Candidate], list[LeftOut]]:
    """Returns problems that are there once, and no cluster in two splits; what is held out goes first."""
    order = list(dict.fromkeys(SPLITS.values()))
    first: dict[str, Candidate] = {}  # words -> who says them
    owner: dict[str, str] = {}  # cluster -> its split
    left_out = list[LeftOut]()
    for item in sorted(found, key=lambda item: order.index(item.split) if item.split else len(order)):
        split, words = item.split or "train", words_of(item.problem.prompt)
        if other := first.get(words):
            place = f"row {other.number} of {other.source}"
            kind, reason = "duplicate", f"says the same, blanks and capitals aside, as {place}"
            if other.problem.ground_truth != item.problem.ground_truth:
                kind, reason = "contradiction", f"{reason}, with another answer"
        elif owner.get(item.cluster, split) != split:
            kind, reason = "cluster_elsewhere", f"its cluster is in {owner[item.cluster]}"
        else:
            owner[item.cluster], first[words] = split, item
            continue
        left_out.append(LeftOut(item.source, item.number, kind, reason))
    return list(first.values()), left_out


def in_splits(
    found: Sequence[Candidate], sizes: Mapping[str, int], given: Collection[str], seed: int
) -> tuple[dict[str, list[Candidate]], list[LeftOut]]:
    """Returns split -> its problems in an order by hash, at most as many as `sizes` says, and the rest.

    A held-out split that is not `given`, and that no row names, takes whole clusters from train, in an order
    by hash, until it has enough.
    """
    held_out = [split for split in sizes if split != "train"]
    in_split = {split: [item for item in found if item.split == split] for split in held_out}
    clusters: dict[str, list[Candidate]] = {}
    for item in found:
        if item.split in ("", "train"):
            clusters.setdefault(item.cluster, []).append(item)
    order = sorted(clusters, key=lambda cluster: seed_of(seed, "split by cluster", cluster))
    for split in held_out:
        if not in_split[split] and split not in given:
            while order and len(in_split[split]) < sizes[split]:
                in_split[split] += clusters[order.pop(0)]
    in_split = {"train": [item for cluster in order for item in clusters[cluster]], **in_split}
    if empty := [split for split, items in in_split.items() if not items]:
        have = ", ".join(f"{split} {len(items)}" for split, items in in_split.items())
        raise ConfigError(
            f"tasks.rows leaves no task for {', '.join(empty)} ({len(found)} usable rows in {len(clusters)} "
            f"clusters without a held-out split of their own; got: {have}). Next: more rows or clusters, a "
            "smaller tasks.num_held_out, or another column of clusters"
        )
    chosen, not_needed = dict[str, list[Candidate]](), list[LeftOut]()
    for split, items in in_split.items():
        items = sorted(items, key=lambda item: seed_of(seed, "order in split", words_of(item.problem.prompt)))
        chosen[split] = items[: sizes[split]]
        full = f"{split} is full with {sizes[split]} tasks (tasks.num_train, tasks.num_held_out)"
        not_needed += [
            LeftOut(item.source, item.number, "not_needed", full) for item in items[sizes[split] :]
        ]
    return chosen, not_needed
