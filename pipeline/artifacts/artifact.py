"""What a complete stage offers to later ones: its tables and files, verified before they are handed out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts import ledger
from pipeline.artifacts.disk import inside
from pipeline.artifacts.manifest import check_sizes, content_of, read_manifest, read_plan, repair_hint
from pipeline.columns import SPECS
from pipeline.errors import ArtifactError
from pipeline.ids import file_sha256
from pipeline.schema import check_table, read_parquet, spec_of
from pipeline.table_digest import content_digest


class Artifact:
    """A complete stage of a run; made by `open`.

    Attributes:
        stage: its name.
        folder: `<run>/<stage>`.
        manifest: what it says of itself.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.stage: str = manifest["stage"]
        self.manifest = manifest
        self._files = {facts["path"]: facts for facts in manifest["files"]}
        self._verified: set[str] = set()

    @classmethod
    def open(cls, run_dir: Path, stage: str) -> Artifact:
        """Returns a stage with a sound manifest and all files there with their sizes.

        Digests are compared when a table or file is first asked for.

        Raises:
            ArtifactError: absent, not complete, or damaged; the message says what to run.
        """
        folder = Path(run_dir) / stage
        manifest = read_manifest(folder)
        if manifest is None:
            plan = read_plan(folder)
            if plan is None:
                raise ArtifactError(f"{folder} is missing. Run: make {stage}, with the same CONFIG and RUN")
            committed = len(ledger.read(folder)[0])
            raise ArtifactError(
                f"{folder} is not complete ({committed} of {plan['shards']} shards). "
                f"Run: make {stage}, with the same CONFIG and RUN"
            )
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
        """Returns a whole table in item order, verified by SHA-256, page checksums and schema.

        Raises:
            ArtifactError: no such table, or a file is damaged.
        """
        parts = [facts for facts in self.manifest["files"] if facts.get("table") == name]
        if not parts:
            raise ArtifactError(
                f"{self.folder} has no table {name!r}; it has: {', '.join(self.tables) or 'none'}"
            )
        tables = []
        for facts in parts:
            path = self._verify(facts["path"])
            part = read_parquet(path, SPECS.get(name))
            if part.num_rows != facts["rows"]:
                raise ArtifactError(f"{path}: {part.num_rows} rows, the manifest says {facts['rows']}")
            tables.append(part)
        return pa.concat_tables(tables)

    def path(self, relative: str) -> Path:
        """Returns a file or folder of this stage, every file in it verified by SHA-256.

        Raises:
            ArtifactError: the manifest does not list it, or a file is damaged.
        """
        relative = relative.rstrip("/")
        target = inside(self.folder, relative)
        wanted = [name for name in self._files if name == relative or name.startswith(relative + "/")]
        if not wanted:
            raise ArtifactError(
                f"{target}: the manifest of {self.stage} lists no such file. Run: make {self.stage}"
            )
        for name in wanted:
            self._verify(name)
        return target

    @property
    def report(self) -> dict[str, Any]:
        """The stage's report.json. Raises ArtifactError if there is none or it is damaged."""
        return json.loads(self.path("report.json").read_bytes())

    def verify(self) -> None:
        """Checks everything: each digest, page, schema, id, the accounting and the content digest.

        Raises:
            ArtifactError: naming the first thing that is wrong.
        """
        for name in self._files:
            self._verify(name, again=True)
        digests = {}
        for name, facts in self.manifest["tables"].items():
            table = self.table(name)
            spec = spec_of(name, table.schema, facts["id_columns"], facts["volatile"])
            try:
                check_table(table, SPECS.get(name, spec))
            except ValueError as error:
                raise ArtifactError(f"{self.folder}: {error}") from None
            digests[name] = content_digest(table, spec)
            if digests[name] != facts["content"]:
                raise ArtifactError(
                    f"{self.folder}: rows of {name} differ from the manifest's content digest"
                )
        counts = self.manifest["counts"]
        total = ledger.Counts(counts["planned"], counts["done"], counts["failed"], counts["skipped"])
        if not total.balanced:
            raise ArtifactError(f"{self.folder}: counts do not balance: {total}")
        outputs = {f["path"]: f["sha256"] for f in self.manifest["files"] if f["kind"] == "output"}
        if content_of(digests, outputs, self.manifest["verdict"]) != self.content_digest:
            raise ArtifactError(f"{self.folder}: the content digest does not match the manifest's own parts")

    def _verify(self, relative: str, *, again: bool = False) -> Path:
        path = inside(self.folder, relative)
        if again or relative not in self._verified:
            if not path.is_file() or file_sha256(path) != self._files[relative]["sha256"]:
                raise ArtifactError(
                    f"{path}: {'damaged (SHA-256 differs)' if path.is_file() else 'missing'}. "
                    f"{repair_hint(self.stage)}"
                )
            self._verified.add(relative)
        return path
