"""What a stage file declares, and one start of it: what its `plan` and `make` work with."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pydantic import BaseModel
from rich.console import Console

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.checkpoints import Checkpoints
from pipeline.artifacts.commit import Shards
from pipeline.artifacts.disk import inside, publish_once, sealed, write_durably, writer_name
from pipeline.artifacts.ledger import Counts
from pipeline.artifacts.manifest import (
    NAME,
    SCHEMA_VERSION,
    content_of,
    key_of,
    provenance,
    read_manifest,
    read_plan,
)
from pipeline.artifacts.metrics import Metrics, plain
from pipeline.artifacts.plan import Plan
from pipeline.artifacts.progress import Progress
from pipeline.artifacts.publish import RESERVED, account, collect, earlier_seconds, merge, remove_spent
from pipeline.artifacts.signals import HelpEnded, StopFlag
from pipeline.artifacts.tracking import Tracker
from pipeline.config import split_settings
from pipeline.errors import ArtifactError
from pipeline.ids import known_sha256
from pipeline.processes.failpoints import failpoint
from pipeline.processes.threads import in_threads
from pipeline.schema import TableSpec
from pipeline.text import visible
from pipeline.types import Rollout

C = TypeVar("C")
W = TypeVar("W")


@dataclass(kw_only=True, eq=False)
class Start(Generic[C]):
    """A stage's folder, its inputs and its settings, while this process, or the one it helps, holds it.

    `plan` may read `config`, `inputs`, `seed`, `stage_key` and nothing heavy; `make` then commits each shard
    of `shards.to_do()` and calls `finish`.
    """

    config: C  # the whole configuration
    run_dir: Path  # `<data_dir>/<run>`; the stage's `folder` lies in it
    identity: Mapping[str, Any]  # stage, code version, semantic settings, inputs' digests, the key of it all
    runtime_settings: Mapping[str, Any]
    inputs: Mapping[str, Artifact]  # the stages before it, verified
    number: int  # of this start, from 0; a helper's is the next one's
    stop: StopFlag
    console: Console
    leads: bool = True  # holds the stage; else it helps the process that does
    shards: Shards = field(init=False)  # what was planned; there in `make`
    counts: Counts | None = field(default=None, init=False)  # of the planned items, after `finish`

    def __post_init__(self) -> None:
        self.stage: str = self.identity["stage"]
        self.stage_key: str = self.identity["stage_key"]
        self.seed: int = self.identity["settings"]["run"]["seed"]
        self.folder = self.run_dir / self.stage
        name = f"start_{self.number:03d}" if self.leads else f"help_{writer_name()}"
        self.log_folder = self.folder / "logs" / name
        self.checkpoints = Checkpoints(self.folder, self.stage, self.say)
        self._metrics = Metrics(self.folder / "metrics.jsonl", self.number, self.say)
        self._outputs: dict[str, bool] = {}  # path -> whether it is volatile
        self._tracker: Tracker | None = None
        self._began = time.monotonic()

    def begin(self, plan: Plan[Any], *, repair: bool, track: bool) -> None:
        """Fixes the plan and takes over what is committed; the runner calls it before `make`.

        Raises ArtifactError if an earlier start planned other items, or a committed shard is damaged.
        """
        if not self.leads and read_plan(self.folder) is None:
            raise HelpEnded  # the stage is being begun again, by other settings perhaps
        plan.fix(self.folder, self.identity)
        failpoint(f"{self.stage}.plan_written")
        callbacks = (self.say, self.progress, self.stop_if_asked)
        self.shards = Shards(self.folder, self.stage, self.stage_key, plan, *callbacks, self.leads)
        if self.leads:
            self.shards.take_over(repair=repair)
        else:
            self.shards.refresh()
        if track and self.leads:
            named = {"run": self.run_dir.name, "stage": self.stage, "stage_key": self.stage_key}
            self._tracker = Tracker(self.folder, named, self.say)

    def output(self, relative: str, *, volatile: bool = False) -> Path:
        """Returns where to write a file or folder that belongs to the stage; its parent folder is there.

        It enters the manifest with its SHA-256 at `finish`. What an unfinished start left there goes first.
        Volatile ones (pages, plots: what no later stage reads) are no part of the content digest.
        """
        path = inside(self.folder, relative)
        first = Path(relative).parts[0]
        if first in RESERVED or first.startswith(("_", ".")):
            raise ValueError(f"{self.stage}: {relative!r} and {', '.join(RESERVED)} belong to the runner")
        if relative not in self._outputs:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._outputs[relative] = volatile
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def move_to_output(self, kept: Path, relative: str) -> Path:
        """Makes a folder that an earlier start may have kept an output; returns where it is now.

        A start that was killed after the move finds it there and moves it again.
        """
        moved = self.folder / relative
        if moved.exists() and not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            os.replace(moved, kept)
        folder = self.output(relative)
        os.replace(kept, folder)
        return folder

    def stop_if_asked(self) -> None:
        """Ends the stage with exit code 75 if a signal came. Call it wherever what follows could be long."""
        self.stop.raise_if_set()

    def progress(self, total: int, description: str, initial: int = 0) -> Progress:
        """Returns a context manager with `advance(n)`: a bar on a terminal, elsewhere a line every 10 s."""
        return Progress(self.console, f"{self.stage}: {description}", total, initial)

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Adds a line to metrics.jsonl; `iteration` or `update` in it lets a resumed history be read back."""
        self._metrics.write(values)
        if self._tracker is not None:
            self._tracker.metrics(values)

    def samples(self, update: int, rollouts: Sequence[Rollout]) -> None:
        """Sends a few rollouts to the tracking service, if there is one."""
        if self._tracker is not None:
            self._tracker.samples(update, rollouts)

    def say(self, text: str) -> None:
        """Prints a line and keeps it in logs/start_NNN/stage.log; control characters become visible."""
        self.console.print(visible(text), markup=False, highlight=False, soft_wrap=True)
        self.log(text)

    def log(self, text: str) -> None:
        """Keeps a line in logs/start_NNN/stage.log; a full disk, or no such folder, does not matter here."""
        with (
            contextlib.suppress(OSError),
            (self.log_folder / "stage.log").open("a", encoding="utf-8") as file,
        ):
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {visible(text)}\n")

    def report(self, report: Mapping[str, Any]) -> None:
        """Writes report.json, which `finish` does too: presentation, no part of the content digest."""
        text = json.dumps(plain(report), indent=1, ensure_ascii=False, allow_nan=False)
        write_durably(self.folder / "report.json", text.encode() + b"\n")
        self._outputs["report.json"] = True

    def finish(
        self,
        *,
        more_tables: Sequence[tuple[TableSpec, pa.Table]] = (),
        report: Mapping[str, Any] | None = None,
        verdict: Mapping[str, Any] | None = None,
        done: int = 0,
    ) -> None:
        """Checks the accounts, merges the shards, publishes the manifest: after that the stage is complete.

        Args:
            more_tables: made at the end; rows of a planned table come after those of the shards.
            report: written to report.json; presentation, no part of the content digest.
            verdict: a judgement that later stages obey; part of the content digest.
            done: items that came out well outside any commit.
        """
        if not self.leads:
            raise HelpEnded  # who leads merges, alone
        total = self.shards.counts(done)
        account(self.shards, self.stage, total, self.log_folder)
        self.shards.verify()
        failpoint(f"{self.stage}.merge.before")
        tables, files = merge(self.folder, self.shards, more_tables)
        failpoint(f"{self.stage}.merge.after")
        if report is not None:
            self.report(report)
        for relative, volatile in sorted(self._outputs.items()):
            files += collect(self.folder, relative, volatile)
        failpoint(f"{self.stage}.report_written")
        judged = plain(verdict)
        content = content_of(
            {name: facts["content"] for name, facts in tables.items()},
            {facts["path"]: facts["sha256"] for facts in files if facts["kind"] == "output"},
            judged,
        )
        manifest = {
            "schema_version": SCHEMA_VERSION,
            **self.identity,
            "runtime": self.runtime_settings,
            "starts": self.number + 1,
            "wall_seconds": round(earlier_seconds(self.folder) + time.monotonic() - self._began, 3),
            "unit": self.shards.plan.unit,
            "counts": asdict(total),
            "tables": tables,
            "files": files,
            "content_digest": content,
            "verdict": judged,
            "finished": time.time(),
            **provenance(),
        }
        if not publish_once(self.folder / NAME, sealed(manifest), f"{self.stage}.manifest"):
            other = read_manifest(self.folder)
            if other is None or other["content_digest"] != content:
                raise ArtifactError(f"{self.folder}: another process has finished it with another result")
        remove_spent(self.folder)
        self.counts = total

    def close(self) -> None:
        """Ends what runs beside the stage and gives claims back, however it ended; the runner calls it."""
        if hasattr(self, "shards"):
            self.shards.release()
        if self._tracker is not None:
            self._tracker.close()


@dataclass(frozen=True)
class Stage(Generic[C, W]):
    """What a stage file declares.

    `sections` are the settings that decide what it makes, as `section` or `section.key`; `run.seed` always
    does. Those that an input was made with too must be the same. The content of `files` decides as well, and
    so do `more_sections`, of which some configurations make use.
    `make` gets the plan's `work`; it may be "module:function", loaded only then, so that a stage that is up
    to date, or only planned, loads no torch.
    """

    name: str  # of the stage, its make target and its folder
    code_version: int  # raised when the output changes its meaning
    inputs: Callable[[C], tuple[str, ...]]  # names of the stages that it reads
    sections: tuple[str, ...]
    plan: Callable[[Start[C]], Plan[W]]  # what it will make, after cheap checks; --dry-run ends there
    make: Callable[[Start[C], W], None] | str
    more_sections: Callable[[C], tuple[str, ...]] = lambda config: ()
    files: Callable[[C], Sequence[Path]] = lambda config: ()  # from outside, that it reads
    may_have_help: bool = False  # whether helpers may play its shards: its `make` calls `play_shards` first
    has_ranks: Callable[[C], bool] = lambda config: False  # whether it trains in ranks: nodes may lend theirs

    @property
    def body(self) -> Callable[[Start[C], W], None]:
        """`make` itself."""
        body: Callable[[Start[C], W], None] = (
            resolve_name(self.make) if isinstance(self.make, str) else self.make
        )
        return body


def identity_of(
    stage: Stage[Any, Any], config: Any, inputs: Mapping[str, Artifact]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what decides the stage's content, its key included, and the runtime settings beside it."""
    semantic: dict[str, Any] = {"run": {"seed": config.run.seed}}
    runtime_settings: dict[str, Any] = {"run": split_settings(config.run)[1]}
    for name in (*stage.sections, *stage.more_sections(config)):
        section, _, key = name.rpartition(".")
        owner = attrgetter(section)(config) if section else config
        if isinstance(getattr(owner, key), BaseModel):
            semantic[name], runtime_settings[name] = split_settings(getattr(owner, key))
        else:
            semantic[name] = owner.model_dump(mode="json", include={key})[key]
    if files := [*stage.files(config)]:
        semantic["files"] = dict(zip(map(str, files), in_threads(known_sha256, files), strict=True))
    identity = {
        "stage": stage.name,
        "code_version": stage.code_version,
        "settings": semantic,
        "inputs": {name: artifact.content_digest for name, artifact in inputs.items()},
    }
    return {**identity, "stage_key": key_of(identity)}, runtime_settings
