"""One start of one stage: what its `plan` and `make` work with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
from rich.console import Console

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.checkpoints import Checkpoints
from pipeline.artifacts.commit import Shard, Shards
from pipeline.artifacts.failpoints import failpoint
from pipeline.artifacts.ledger import Counts
from pipeline.artifacts.metrics import Metrics
from pipeline.artifacts.plan import Plan
from pipeline.artifacts.progress import Progress
from pipeline.artifacts.publish import Outputs, account, earlier_seconds, publish
from pipeline.artifacts.signals import StopFlag
from pipeline.artifacts.tracking import Tracker
from pipeline.schema import TableSpec
from pipeline.text import visible
from pipeline.types import Rollout

__all__ = ["Shard", "Shards", "Start"]


class RunSettings(Protocol):
    """What the runner itself reads of a configuration."""

    @property
    def name(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def data_dir(self) -> str: ...
    @property
    def tracking(self) -> str: ...


class Settings(Protocol):
    """A configuration that a stage can be started with."""

    @property
    def run(self) -> RunSettings: ...


C = TypeVar("C", bound=Settings)


class Start(Generic[C]):
    """A stage's folder, its inputs and its settings, while the stage's lock is held.

    `plan` may read `config`, `inputs`, `seed`, `stage_key` and nothing heavy; `make` then commits each shard
    of `shards.to_do()` and calls `finish`.

    Attributes:
        config: the whole configuration.
        run_dir: `<data_dir>/<run>`.
        stage: its name.
        folder: `<run_dir>/<stage>`.
        stage_key: identifies settings, code version and inputs.
        seed: `run.seed`.
        inputs: the stages before it, verified.
        number: of this start, from 0.
        checkpoints: training state, if the stage saves any.
        shards: what was planned; there once `make` runs.
        counts: what became of the planned items; there once `finish` has returned.
    """

    shards: Shards

    def __init__(
        self,
        *,
        config: C,
        identity: Mapping[str, Any],
        inputs: Mapping[str, Artifact],
        number: int,
        stop: StopFlag,
        console: Console,
        runtime_settings: Mapping[str, Any],
    ) -> None:
        self.config = config
        self.run_dir = Path(config.run.data_dir) / config.run.name
        self.stage: str = identity["stage"]
        self.folder = self.run_dir / self.stage
        self.stage_key: str = identity["stage_key"]
        self.seed = config.run.seed
        self.inputs = inputs
        self.number = number
        self.checkpoints = Checkpoints(self.folder, self.stage, self.say)
        self.counts: Counts | None = None
        self._identity = identity
        self._runtime = runtime_settings
        self._stop = stop
        self._console = console
        self._metrics = Metrics(self.folder / "metrics.jsonl", number, self.say)
        self._outputs = Outputs(self.folder, self.stage)
        self._tracker: Tracker | None = None
        self._began = time.monotonic()

    def begin(self, plan: Plan[Any], *, repair: bool) -> None:
        """Fixes the plan and takes over what earlier starts committed; the runner calls it before `make`.

        Raises:
            ArtifactError: an earlier start planned other items, or a committed shard is damaged.
        """
        plan.fix(self.folder, self._identity)
        failpoint(f"{self.stage}.plan_written")
        self.shards = Shards(
            self.folder,
            self.stage,
            self.stage_key,
            plan,
            say=self.say,
            progress=self.progress,
            stop_if_asked=self.stop_if_asked,
        )
        self.shards.take_over(repair=repair)
        if self.config.run.tracking == "wandb":
            named = {"run": self.config.run.name, "stage": self.stage, "stage_key": self.stage_key}
            self._tracker = Tracker(self.folder, self.log_folder, named, self.say)

    # -- along the way -------------------------------------------------------------------------------------

    def output(self, relative: str, *, volatile: bool = False) -> Path:
        """Returns where to write a file or folder that belongs to the stage; its parent folder is there.

        It enters the manifest with its SHA-256 at `finish`. What an unfinished start left there goes first.

        Args:
            relative: path inside the stage's folder.
            volatile: leave it out of the content digest (pages, plots: what no later stage reads).
        """
        return self._outputs.path(relative, volatile=volatile)

    def stop_if_asked(self) -> None:
        """Ends the stage with exit code 75 if a signal came. Call it wherever what follows could be long."""
        self._stop.raise_if_set()

    def progress(self, total: int, description: str, initial: int = 0) -> Progress:
        """Returns a context manager with `advance(n)`: a bar on a terminal, elsewhere a line every 10 s."""
        return Progress(self._console, f"{self.stage}: {description}", total, initial)

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
        self._console.print(visible(text), markup=False, highlight=False, soft_wrap=True)
        self.log(text)

    def log(self, text: str) -> None:
        """Keeps a line in logs/start_NNN/stage.log; a full disk, or no such folder, does not matter here."""
        with (
            contextlib.suppress(OSError),
            (self.log_folder / "stage.log").open("a", encoding="utf-8") as file,
        ):
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {visible(text)}\n")

    @property
    def log_folder(self) -> Path:
        """`logs/start_NNN` of this start."""
        return self.folder / "logs" / f"start_{self.number:03d}"

    # -- the end -------------------------------------------------------------------------------------------

    def finish(
        self,
        *,
        more_tables: Sequence[tuple[TableSpec, pa.Table]] = (),
        report: Mapping[str, Any] | None = None,
        verdict: Mapping[str, Any] | None = None,
        done: int = 0,
        failed: Mapping[str, int] | None = None,
        skipped: Mapping[str, int] | None = None,
    ) -> None:
        """Checks the accounts, merges the shards, publishes the manifest: after that the stage is complete.

        Args:
            more_tables: tables made at the end, each from all shards.
            report: written to report.json; presentation, no part of the content digest.
            verdict: a judgement that later stages obey; part of the content digest.
            done: items that came out well outside any commit (stages that plan updates and commit no shards).
            failed: items that failed outside any commit, by kind.
            skipped: items that were not tried outside any commit, by kind.

        Raises:
            ValueError: the counts do not balance, or a table is wrong.
            ArtifactError: code FAILED_ITEMS if too many items failed; a shard is damaged.
        """
        total = self.shards.counts(done, failed, skipped)
        account(self.shards, self.stage, total, self.log_folder)
        publish(
            self.folder,
            self._identity,
            self.shards,
            self._outputs,
            total=total,
            more_tables=more_tables,
            report=report,
            verdict=verdict,
            how={
                "runtime": self._runtime,
                "starts": self.number + 1,
                "wall_seconds": round(earlier_seconds(self.folder) + time.monotonic() - self._began, 3),
            },
        )
        self.counts = total

    def close(self) -> None:
        """Ends what runs beside the stage, however it ended; the runner calls it."""
        if self._tracker is not None:
            self._tracker.close()
