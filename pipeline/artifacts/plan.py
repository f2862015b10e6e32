"""What a stage will make, as a value: a stage file computes it, nothing heavy is loaded before it stands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pipeline.artifacts import ledger
from pipeline.artifacts.disk import sealed, write_durably
from pipeline.artifacts.manifest import SCHEMA_VERSION, read_manifest, read_plan
from pipeline.errors import ArtifactError
from pipeline.ids import digest
from pipeline.schema import TableSpec

T = TypeVar("T")
W = TypeVar("W")


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[W]):
    """The items of a stage, in shards that are committed one by one."""

    items: Sequence[Sequence[str]]  # ids, a list for each shard; each id once
    unit: str  # what an item is, in the plural
    tables: Sequence[TableSpec] = ()  # that each commit brings
    estimate: Mapping[str, Any] = field(default_factory=dict)  # figures for --dry-run
    work: W  # what `make` needs besides, such as the episodes that the ids stand for

    def __post_init__(self) -> None:
        flat = [item for shard in self.items for item in shard]
        if len(set(flat)) != len(flat):
            raise ValueError("the plan names an item twice; item ids must be unique")

    @property
    def num_items(self) -> int:
        """How many items are planned."""
        return sum(map(len, self.items))

    def fix(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Writes plan.json; raises ArtifactError if an earlier start wrote one of other items."""
        wanted = {
            **identity,
            "unit": self.unit,
            "planned": self.num_items,
            "shards": len(self.items),
            "items_digest": digest("items", [list(shard) for shard in self.items]),
            "tables": sorted(spec.name for spec in self.tables),
        }
        recorded = read_plan(folder)
        if recorded is None:
            write_durably(folder / "plan.json", sealed({"schema_version": SCHEMA_VERSION, **wanted}))
            return
        different = ", ".join(
            f"{key} {recorded[key]} -> {wanted[key]}"
            for key in ("planned", "shards", "items_digest", "tables")
            if recorded[key] != wanted[key]
        )
        if different:
            raise ArtifactError(
                f"{folder}: an earlier start with the same settings planned other work: {different}. Next: "
                f"the former run.rollouts_per_shard, or make {identity['stage']} SET=--fresh for changed code"
            )

    def outlook(self, folder: Path, stage: str, inputs: Mapping[str, str]) -> str:
        """Returns what --dry-run prints; `inputs` are stages that are read -> their content digests."""
        begun = f"{len(ledger.read(folder)[0])} of them committed" if read_plan(folder) else "absent"
        state = "complete" if read_manifest(folder) else begun
        what = f"{self.num_items} {self.unit} in {len(self.items)} shards"
        lines = [f"{stage}: would make {what} in {folder} ({state})"]
        lines += [f"  reads {name} {content[:8]}" for name, content in inputs.items()]
        lines += [f"  {key}: {value}" for key, value in self.estimate.items()]
        return "\n".join(lines)


def in_shards(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Returns consecutive pieces of at most `size` items.

    Example:
        >>> in_shards("abcde", 2)
        ['ab', 'cd', 'e']
    """
    return [items[i : i + size] for i in range(0, len(items), size)]
