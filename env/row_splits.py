"""What becomes of rows once each is a problem: what is there twice goes, splits are made by cluster."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.errors import ConfigError
from pipeline.ids import digest, seed_of
from pipeline.rows import LeftOut, Row, normal_text
from pipeline.types import Message

SPLITS = {"test": "test", "val": "val", "validation": "val", "dev": "val", "train": "train"}
"""What a row may call its split -> ours, held-out ones first."""
NOT_NEEDED = "not_needed"
"""Kind of the rows that a split has no room for."""


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

    row: Row
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
    first: dict[tuple[str, ...], Candidate] = {}
    owner: dict[str, str] = {}  # cluster, or words in small letters -> split
    kept, left_out = list[Candidate](), list[LeftOut]()
    for item in sorted(found, key=lambda item: order.index(item.split) if item.split else len(order)):
        split, (source, number, _) = item.split or "train", item.row
        names = (item.cluster, digest("said", words_of(item.problem.prompt)))
        elsewhere = {owner[name] for name in names if name in owner} - {split}
        if other := first.get(contents := tuple(message["content"] for message in item.problem.prompt)):
            place = f"row {other.row.number} of {other.row.source}"
            same = other.problem.ground_truth == item.problem.ground_truth
            kind, reason = (
                ("duplicate", f"says the same as {place}")
                if same
                else ("contradiction", f"asks the same as {place}, with another answer")
            )
            left_out.append(LeftOut(source, number, kind, reason))
        elif elsewhere:
            reason = f"its cluster, or what it says, is in {', '.join(sorted(elsewhere))}"
            left_out.append(LeftOut(source, number, "cluster_elsewhere", reason))
        else:
            owner |= dict.fromkeys(names, split)
            first[contents] = item
            kept.append(item)
    return kept, left_out


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
        not_needed += [
            LeftOut(item.row.source, item.row.number, NOT_NEEDED, f"{split} is full")
            for item in items[sizes[split] :]
        ]
    return chosen, not_needed
