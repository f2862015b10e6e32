"""Takes the runs of a comparison through their stages, some at a time; what another run made is linked."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.manifest import read_manifest
from pipeline.artifacts.start import identity_of
from pipeline.errors import ArtifactError, ExitCode
from stages.wiring.arm_costs import link_with_refreshes
from stages.wiring.arms import ArmRun, stage_of
from stages.wiring.subrun import POLL_SECONDS, begin_stage, last_words, write_config

AGAIN = (ExitCode.LOCKED, ExitCode.STOPPED)
"""Of these another start is the right next move: an orphan that is about to end, a lost worker."""
MOST_HELD = 33
"""Starts running that may find a stage held: a quarter of an hour, in which an orphan saves and ends."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run came no further."""

    code: int  # exit code of the stage, or minus the signal that killed it
    words: str

    @property
    def kind(self) -> str:
        """What the accounts call it."""
        return "refused" if self.code == ExitCode.QUALITY else f"ended_with_{self.code}"


@dataclass(slots=True)
class _Job:
    """A run on its way."""

    run: ArmRun
    next: int = 0  # place in the chain
    key: str | None = None  # of the stage there, once it is known
    process: subprocess.Popen[bytes] | None = None  # that makes it
    said: int = 0  # size of the log before it
    starts: int = 0  # of that stage
    held: int = 0  # starts running that found it held
    begins: float = 0.0  # when it may start again


@dataclass(slots=True)
class SideBySide:
    """Plays runs."""

    runs: Sequence[ArmRun]
    home: Path  # the folder of all runs of the comparison, these and others
    slots: int  # stages that work at once
    stop_if_asked: Callable[[], None]  # raises if a signal came
    say: Callable[[str], None]
    _made: dict[Path, str] = field(default_factory=dict)  # folder of a complete stage -> its key
    _failed: dict[str, Failure] = field(default_factory=dict)  # by stage key

    def ended(self) -> Generator[tuple[ArmRun, Failure | None], None, None]:
        """Yields each run once it ended, with why it came no further than it did; None: it is complete.

        What cannot be made for one run is not tried for another. Stages that still run are asked to stop if
        the caller is.
        """
        jobs = [_Job(run) for run in self.runs]
        for path in sorted(self.home.glob("*/*/manifest.json")):
            with contextlib.suppress(ArtifactError):  # a damaged one: its own stage will say so
                self._made[path.parent] = (read_manifest(path.parent) or {})["stage_key"]
        try:
            while jobs:
                self.stop_if_asked()
                for job in list(jobs):
                    failure = self._advance(job, jobs)
                    if failure or job.next == len(job.run.chain):
                        jobs.remove(job)
                        yield job.run, failure
                time.sleep(POLL_SECONDS)
        finally:
            working = [job.process for job in jobs if job.process is not None]
            for process in working:
                process.terminate()
            for process in working:
                process.wait()

    def _advance(self, job: _Job, jobs: Sequence[_Job]) -> Failure | None:
        """Takes a run as far as it comes without waiting; returns why it failed if it did."""
        while job.next < len(job.run.chain):
            stage, run = job.run.chain[job.next], job.run
            folder = run.run_dir / stage
            if job.process is not None:
                if job.process.poll() is None:
                    return None
                self._judge(job, stage)
            if job.key is None:
                declared = stage_of(stage)
                try:
                    inputs = {name: Artifact.open(run.run_dir, name) for name in declared.inputs(run.config)}
                except ArtifactError as error:  # somebody damaged it
                    return Failure(error.code, f"{stage} cannot begin: {error}")
                job.key = identity_of(declared, run.config, inputs)[0]["stage_key"]
            if job.key in self._failed:
                return self._failed[job.key]
            if not folder.exists() and (source := self._maker_of(job.key)):
                link_with_refreshes(source, folder)
                self._made[folder] = job.key
            if self._made.get(folder) == job.key:
                job.next, job.key, job.starts = job.next + 1, None, 0
                continue
            working = sum(other.process is not None for other in jobs)
            is_others = any(other.key == job.key and other.starts and other is not job for other in jobs)
            if not is_others and working < self.slots and time.monotonic() >= job.begins:
                self._begin(job, stage)
            return None
        return None

    def _maker_of(self, key: str) -> Path | None:
        return next((folder for folder, made in self._made.items() if made == key), None)

    def _begin(self, job: _Job, stage: str) -> None:
        settings, log = job.run.config.model_dump(mode="json", exclude={"comparison"}), self._log_of(job)
        config = write_config(settings, self.home, job.run.name)
        job.said = log.stat().st_size if log.exists() else 0
        job.starts += 1
        job.process = begin_stage(stage, config, log)

    def _judge(self, job: _Job, stage: str) -> None:
        """Takes note of how a stage ended."""
        assert job.process is not None
        assert job.key is not None
        code, job.process = job.process.returncode, None
        job.held = job.held + 1 if code == ExitCode.LOCKED else 0
        if code == ExitCode.COMPLETE:
            self._made[job.run.run_dir / stage] = job.key
            self.say(f"{job.run.name}: {stage} is complete")
            return
        text = self._log_of(job).read_bytes()[job.said :].decode("utf-8", "replace")
        words = f"{stage} ended with {code}: {last_words(stage, text)}"
        if code not in AGAIN or job.held == MOST_HELD:  # how many lost workers are too many a stage says
            self._failed[job.key] = Failure(code, words)
            return
        job.begins = time.monotonic() + 2 ** min(job.starts - 1, 5)  # seconds, 32 at most
        if job.starts == 1:
            self.say(f"{job.run.name}: {words}. It starts again: after a second, then ever more rarely")

    def _log_of(self, job: _Job) -> Path:
        return self.home / f"{job.run.name}.log"
