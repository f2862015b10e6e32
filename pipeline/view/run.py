"""A run as its viewer knows it: stages with rollouts, each indexed when it is first asked for."""

import itertools
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ArtifactError
from pipeline.models.folder import digest_of_tokenizer
from pipeline.runs import stages_of
from pipeline.text import visible
from pipeline.view.index import StageIndex, Tasks
from pipeline.view.parts import Parts, tables_of, version_of

TOKENIZERS = ("sft/policy", "actor/actor", "stored/policy")
"""Where a run keeps its tokenizer."""
HAS_ROLLOUTS = {"rollouts", "steps"}
"""Tables of a stage that has rollouts."""
CONTINUED_IN = {"rollouts": ("labels", "critic_report")}
"""Stage -> others that continue its rollouts; most continue their own."""


class Run:
    """The stages of a run that have rollouts; several threads may ask."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._lock = RLock()
        self._indices: dict[str, StageIndex] = {}
        self._tasks: tuple[str, Tasks] | None = None
        self._labels: tuple[str, pa.Array, Parts] | None = None
        self._tokenizers: dict[str, Any] = {}
        if not self.stages():
            raise ArtifactError(
                f"{run_dir} has no rollouts to show. Next: make rollouts, or name another run"
            )

    def stages(self) -> list[dict[str, Any]]:
        """Returns the stages that have rollouts now: name, their number, whether the stage is complete."""
        found = []
        for stage in stages_of(self.run_dir):
            tables, is_complete = tables_of(self.run_dir / stage)
            if tables.keys() >= HAS_ROLLOUTS:
                number = tables["rollouts"].num_rows
                found.append({"stage": stage, "rollouts": number, "complete": is_complete})
        return found

    def facts(self) -> dict[str, Any]:
        """Returns what a page says of the run before any stage is opened."""
        return {
            "run": visible(self.run_dir.resolve().name),
            "stages": self.stages(),
            "pages": sorted(self._pages()),
            "policies": self._policies(),
        }

    def _pages(self) -> dict[str, Path]:
        """Returns relative path -> file of the pages that the stages and the summary have made."""
        names = [*(f"{stage}/report.html" for stage in stages_of(self.run_dir)), "summary.html"]
        files = {name: self.run_dir / name for name in names}
        return {name: file for name, file in files.items() if file.is_file() and not file.is_symlink()}

    def page_at(self, target: str) -> Path | None:
        """Returns the file of a page that a request names; None for anything but the pages of the run."""
        return self._pages().get(target.removeprefix("/"))

    def _policies(self) -> dict[str, str]:
        """Returns digest -> name of the policies that an evaluation compared."""
        path = self.run_dir / "evaluation" / "report.json"
        try:
            names = json.loads(path.read_bytes())["policies"]
            return {visible(str(digest)): visible(str(name)) for name, digest in names.items()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return {}

    def index(self, stage: str, version: str | None = None) -> StageIndex:
        """Returns a stage's index: of the given version, or of what is there now.

        Raises LookupError for a stage without rollouts, or a version that is no longer known.
        """
        with self._lock:
            known = self._indices.get(stage)
            if version is not None:
                if known is None or known.version != version:
                    raise LookupError(f"{stage} has gone on; load the page again")
                return known
            is_known = stage in stages_of(self.run_dir)  # and no path
            tables, is_complete = tables_of(self.run_dir / stage) if is_known else ({}, False)
            if not tables.keys() >= HAS_ROLLOUTS:
                raise LookupError(f"no rollouts in {stage}")
            if known is None or known.version != version_of(tables):
                known = StageIndex(stage, tables, is_complete, self._tasks_now())
                self._indices[stage] = known
            return known

    def warm_up(self) -> None:
        """Indexes the stage that a page opens with, to have it when the page comes."""
        with suppress(ArtifactError, LookupError):  # whoever asks for it is told
            index = self.index(self.stages()[0]["stage"])
            _ = index.columns, index.step_columns

    def _tasks_now(self) -> Tasks:
        tables, _ = tables_of(self.run_dir / "tasks")
        version = version_of(tables)
        if self._tasks is None or self._tasks[0] != version:
            self._tasks = version, Tasks.of(tables)
        return self._tasks[1]

    def find(self, rollout_id: str, stage: str | None = None) -> tuple[str, int] | None:
        """Returns a stage, or this one, that has a rollout whose id is this or begins so, and its row."""
        for name in [stage] if stage is not None else [entry["stage"] for entry in self.stages()]:
            row = self.index(name).row_of(rollout_id)
            if row is not None:
                return name, row
        return None

    def continued(self, stage: str, rollout_ids: Sequence[str]) -> list[dict[int, tuple[int, float]]]:
        """Returns step -> (number, sum of rewards) of each rollout's graded continuations in the run."""
        indices = []
        for name in (stage, *CONTINUED_IN.get(stage, ())):
            with suppress(LookupError):  # it has no rollouts yet
                indices.append(self.index(name))
        found: list[dict[int, tuple[int, float]]] = [{} for _ in rollout_ids]
        for index, (own, rollout_id) in itertools.product(indices, zip(found, rollout_ids, strict=True)):
            for step, (number, total) in index.continued(rollout_id).items():
                before = own.get(step, (0, 0.0))
                own[step] = before[0] + number, before[1] + total
        return found

    def labels_of(self, stage: str, rollout_ids: Sequence[str]) -> list[dict[int, float]]:
        """Returns step -> label target of each rollout of the stage `rollouts`, where it has labels."""
        none: list[dict[int, float]] = [{} for _ in rollout_ids]
        if stage != "rollouts":
            return none
        with self._lock:
            tables, _ = tables_of(self.run_dir / "labels")
            if "labels" not in tables:
                return none
            version = version_of(tables)
            if self._labels is None or self._labels[0] != version:
                ids = tables["labels"].columns(["rollout_id"]).column(0).combine_chunks()
                self._labels = version, ids, tables["labels"]
            _, ids, parts = self._labels
        own = pc.indices_nonzero(pc.is_in(ids, value_set=pa.array(rollout_ids, pa.string()))).to_pylist()
        found: dict[str, dict[int, float]] = {}
        for row in parts.rows(own, ("rollout_id", "step_index", "target")):
            found.setdefault(row["rollout_id"], {})[row["step_index"]] = row["target"]
        return [found.get(rollout_id, {}) for rollout_id in rollout_ids]

    def tokenizer(self, wanted: str) -> Any:
        """Returns the run's tokenizer with this digest; None if it has none."""
        with self._lock:
            if wanted not in self._tokenizers:
                self._tokenizers[wanted] = self._load_tokenizer(wanted)
            return self._tokenizers[wanted]

    def _load_tokenizer(self, wanted: str) -> Any:
        files = [self.run_dir / place / "tokenizer.json" for place in TOKENIZERS]
        files = [path for path in files if path.is_file() and not path.is_symlink()]
        # Of a base that was adopted as it is, a run knows the tokenizer that transformers made of the file.
        for read in (_as_stored, _as_transformers_has_it):
            for path in files:
                with suppress(Exception):  # of no kind of its own; who asks is told that there are ids alone
                    found = read(path)
                    if digest_of_tokenizer(found.to_str()) == wanted:
                        return found
        return None


def _as_stored(path: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def _as_transformers_has_it(path: Path) -> Any:
    from pipeline.models.policy import load_tokenizer  # torch too: only where it is needed

    return load_tokenizer(path.parent).backend_tokenizer
