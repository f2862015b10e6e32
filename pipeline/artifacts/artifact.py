"""What a complete stage offers to later ones: its tables and files, verified before they are handed out."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from pipeline.artifacts import ledger
from pipeline.artifacts.disk import inside, verified
from pipeline.artifacts.manifest import check_sizes, content_of, read_manifest, read_plan, repair_hint
from pipeline.columns import SPECS
from pipeline.errors import ArtifactError
from pipeline.processes.threads import in_threads
from pipeline.schema import content_digest, parquet_batches, read_parquet


class Artifact:
    """A complete stage of a run, with its folder and manifest; made by `open`."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.stage: str = manifest["stage"]
        self.manifest = manifest
        self._files = {facts["path"]: facts for facts in manifest["files"]}
        self._verified: set[str] = set()

    @classmethod
    def open(cls, run_dir: Path, stage: str) -> Self:
        """Returns a stage with a sound manifest and all files there with their sizes.

        Digests are compared when a table or file is first asked for. Raises ArtifactError for a stage that is
        absent, not complete, or damaged; the message says what to run.
        """
        folder = Path(run_dir) / stage
        manifest = read_manifest(folder)
        if manifest is None:
            plan = read_plan(folder)
            state = (
                f"not complete ({len(ledger.read(folder)[0])} of {plan['shards']} shards)"
                if plan
                else "missing"
            )
            raise ArtifactError(f"{folder} is {state}. Run: make {stage}, with the same CONFIG and RUN")
        if manifest["stage"] != stage:
            raise ArtifactError(
                f"{folder} holds stage {manifest['stage']!r}; expected {stage!r}. Run: make {stage}"
            )
        check_sizes(folder, manifest)
        return cls(folder, manifest)

    @property
    def content_digest(self) -> str:
        """Digest of rows, files and verdict: what later stages depend on."""
        return self.manifest["content_digest"]

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of its tables."""
        return tuple(self.manifest["tables"])

    def table(self, name: str) -> pa.Table:
        """Returns a table in item order; raises ArtifactError if it is damaged or has another schema."""
        self._must_have(name)
        self._verify([f"{name}.parquet"])
        return read_parquet(self.folder / f"{name}.parquet", SPECS.get(name))

    def batches(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields a table in item order, some of its rows in memory at a time; errors as of `table`.

        Only the file's digest and its pages' checksums are compared: whoever wrote it checked its values.
        """
        self._must_have(name)
        self._verify([f"{name}.parquet"])
        yield from parquet_batches(self.folder / f"{name}.parquet", columns)

    def path(self, relative: str) -> Path:
        """Returns a file or folder of this stage; raises ArtifactError if a file in it is damaged."""
        relative = relative.rstrip("/")
        target = inside(self.folder, relative)
        wanted = [name for name in self._files if name == relative or name.startswith(relative + "/")]
        if not wanted:
            raise ArtifactError(
                f"{target}: the manifest of {self.stage} lists no such file. Run: make {self.stage}"
            )
        self._verify(wanted)
        return target

    @property
    def report(self) -> dict[str, Any]:
        """The stage's report.json. Raises ArtifactError if there is none or it is damaged."""
        return json.loads(self.path("report.json").read_bytes())

    def verify(self) -> None:
        """Raises ArtifactError for a wrong digest, page, schema or id, and for counts that do not balance."""
        self._verified.clear()
        self._verify(self._files)
        digests = {}
        for name, facts in self.manifest["tables"].items():
            digests[name] = content_digest(self.table(name), facts["id_columns"])
            if digests[name] != facts["content"]:
                raise ArtifactError(
                    f"{self.folder}: rows of {name} differ from the manifest's content digest"
                )
        total = ledger.Counts(**self.manifest["counts"])
        if not total.balanced:
            raise ArtifactError(f"{self.folder}: counts do not balance: {total}")
        outputs = {f["path"]: f["sha256"] for f in self.manifest["files"] if f["kind"] == "output"}
        if content_of(digests, outputs, self.manifest["verdict"]) != self.content_digest:
            raise ArtifactError(f"{self.folder}: the content digest does not match the manifest's own parts")

    def _must_have(self, name: str) -> None:
        if name not in self.tables:
            raise ArtifactError(
                f"{self.folder} has no table {name!r}; it has: {', '.join(self.tables) or 'none'}"
            )

    def _verify(self, names: Iterable[str]) -> None:
        """Compares digests of files that this artifact has not compared yet."""
        new = [self._files[name] for name in names if name not in self._verified]
        for facts in in_threads(partial(_must_match, self.folder, repair_hint(self.stage)), new):
            self._verified.add(facts["path"])


def _must_match(folder: Path, hint: str, facts: dict[str, Any]) -> dict[str, Any]:
    verified(folder, facts["path"], facts["sha256"], hint)
    return facts
