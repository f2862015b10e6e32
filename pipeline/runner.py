"""Runs a stage: command line, settings, lock, inputs, signals, exit code; its file says what it makes.

The promise: after any stop, the same command again is the right next move, without clean-up.
"""

import contextlib
import json
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from pipeline.artifacts.arguments import check_help, is_one_too_many, read_arguments
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import check_folder, fsync, make_folder, remove_temporaries
from pipeline.artifacts.ledger import Counts
from pipeline.artifacts.lock import Lock, holder, names, players
from pipeline.artifacts.manifest import (
    OtherLayoutError,
    check_lineage,
    check_sizes,
    read_manifest,
    read_plan,
    refuse_if_changed,
    refuse_if_inputs_disagree,
)
from pipeline.artifacts.plan import Plan
from pipeline.artifacts.publish import remove_spent
from pipeline.artifacts.screen import Screen, say_last
from pipeline.artifacts.signals import HelpEnded, StopFlag, StopRequested
from pipeline.artifacts.start import Stage, Start, identity_of
from pipeline.artifacts.starts import committed, lost_at, next_start
from pipeline.artifacts.turn import ASKING_SECONDS, Turn
from pipeline.errors import ArtifactError, ConfigError, ExitCode, explain
from pipeline.processes.failpoints import failpoint
from pipeline.processes.life import Scope, workers_of
from pipeline.processes.nodes import Nodes
from pipeline.processes.worker import WorkerDiedError
from pipeline.settings import Section
from pipeline.text import visible

__all__ = ["Plan", "Stage", "Start", "run_stage"]


def run_stage(stage: Stage[Any, Any], config_model: type[Section], argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of one start of a stage, after printing what came of it.

    `config_model` must have `run` with `name`, `seed`, `data_dir`, `tracking` and `patience`; `argv` is by
    default the process's own.
    """
    run = _Run(stage, config_model)
    code, message = ExitCode.DEFECT, ""
    with run.stop.installed():
        try:
            code, message = run.go(sys.argv[1:] if argv is None else argv)
        except (StopRequested, SystemExit, Exception) as error:
            code, message = run.judge(error)
            message = f"{stage.name}: {message}"
        finally:
            run.leave(code, message)
    say_last(visible(message), sys.stdout if code == ExitCode.COMPLETE else sys.stderr)
    return int(code)


MAX_STARTS_IN_VAIN = 3
"""Starts in a row that may lose a worker with nothing committed between; a scheduler would go on for ever."""


class _Run:
    """One call of `run_stage`."""

    def __init__(self, stage: Stage[Any, Any], config_model: type[Section]) -> None:
        self.stage = stage
        self.config_model = config_model
        self.screen = Screen()
        self.stop = StopFlag()
        self.folder = Path()  # known once the configuration is read
        self.lock: Lock | None = None
        self.start: Start[Any] | None = None
        self.nodes: Nodes | None = None  # that lend their ranks to this start
        self.lost_at: dict[str, int] | None = None  # what was committed when a worker was killed

    def go(self, argv: Sequence[str]) -> tuple[ExitCode, str]:
        try:
            options, config = read_arguments(self.stage.name, self.config_model, argv)
        except SystemExit as leaving:  # argparse: its own message is printed already
            return ExitCode(int(leaving.code or 0)), ""
        run_dir = Path(config.run.data_dir) / config.run.name
        self.folder = run_dir / self.stage.name
        if config.run.tracking == "wandb" and find_spec("wandb") is None:
            raise ConfigError(
                "run.tracking = wandb, but the package wandb is not installed. Next: "
                "pip install -c constraints.txt -e '.[tracking]', or run.tracking=none"
            )
        place = f"run.data_dir = {config.run.data_dir}"
        check_folder(run_dir, place)
        check_help(self.stage, options, config)
        if options.nodes > 1 and is_one_too_many():
            return ExitCode.COMPLETE, ""
        names = self.stage.inputs(config)
        inputs = {name: Artifact.open(run_dir, name) for name in names}
        identity, runtime_settings = identity_of(self.stage, config, inputs)
        failpoint(f"{self.stage.name}.start")

        check_lineage(run_dir, names)
        if not options.fresh and not options.repair and (message := self._up_to_date(identity)):
            return ExitCode.COMPLETE, message
        if not options.dry_run:
            make_folder(self.folder, place)
            if ended := self._take_lock(options, identity, config.run.patience):
                return ended
            if options.fresh:
                self._set_aside()
            else:  # looked at again under the lock: another process may have been faster
                message = self._repaired(identity) if options.repair else self._up_to_date(identity)
                if message:
                    return ExitCode.COMPLETE, message
        recorded = read_plan(self.folder) if not (options.fresh and options.dry_run) else None
        if recorded is not None:
            refuse_if_changed(self.folder, recorded, identity, complete=False)
        theirs = {name: artifact.manifest["settings"] for name, artifact in inputs.items()}
        refuse_if_inputs_disagree(self.stage.name, identity["settings"], theirs)
        start = Start(
            config=config,
            run_dir=run_dir,
            identity=identity,
            inputs=inputs,
            number=next_start(self.folder),
            stop=self.stop,
            console=self.screen,
            runtime_settings=runtime_settings,
            leads=options.dry_run or self.lock is not None,
        )
        if options.dry_run:
            plan = self.stage.plan(start)
            return ExitCode.COMPLETE, plan.outlook(self.folder, self.stage.name, identity["inputs"])
        start.log_folder.mkdir(parents=True, exist_ok=not start.leads)
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        (start.log_folder / "config.yaml").write_text(text, encoding="utf-8")
        self.start = start
        start.log(f"start {start.number}, stage key {start.stage_key}, arguments: {' '.join(argv)}")
        try:
            self.nodes = Nodes(self.folder, options.nodes, start.log_folder.name)
            with workers_of(Scope(start.log_folder, config.run.patience, self.nodes)):
                plan = self.stage.plan(start)
                start.begin(plan, repair=options.repair, track=config.run.tracking == "wandb")
                self.nodes.gather(start.say, self.stop.raise_if_set)
                self.stage.body(start, plan.work)
        except HelpEnded:
            return self._after_help(argv)
        if start.counts is None:
            raise RuntimeError(f"stage {self.stage.name} returned without finish()")
        failpoint(f"{self.stage.name}.exit")
        return ExitCode.COMPLETE, f"{self.stage.name}: complete in {self.folder}\n{start.counts}"

    def _take_lock(
        self, options: Namespace, identity: Mapping[str, Any], patience: float
    ) -> tuple[ExitCode, str] | None:
        """Holds the stage, or, to join it, waits until the process that does has planned it.

        One of several `nodes` lends that process its ranks, and returns how the stage has ended.
        """
        alone = not options.join and options.nodes == 1
        until = "has planned the stage" if options.join else "asks for more nodes"
        turn = Turn(self.folder, self.screen.tell, self.stop.raise_if_set)
        while self.lock is None:
            try:
                self.lock = Lock(self.folder, say=self.screen.tell if alone else None)
                failpoint(f"{self.stage.name}.lock_taken")
            except (ArtifactError, FileNotFoundError) as error:  # held, or being set aside
                if alone:
                    raise
                if (recorded := read_plan(self.folder)) is not None:
                    if options.join:
                        break
                    refuse_if_changed(self.folder, recorded, identity, complete=False)
                    from pipeline.training.rank_agent import lent

                    if ended := lent(self.folder, patience, self.screen.tell):
                        return ended
                turn.wait(error, until, ASKING_SECONDS * patience)
        return None

    def _after_help(self, argv: Sequence[str]) -> tuple[ExitCode, str]:
        """Waits until the stage is complete, for no other end is 0; leads if whoever did is gone."""
        self.leave(ExitCode.COMPLETE, "no shard is left to play; waits for the process that holds the stage")
        failpoint(f"{self.stage.name}.helped")
        turn = Turn(self.folder, self.screen.tell, self.stop.raise_if_set)
        while read_manifest(self.folder) is None:
            try:
                self.lock = Lock(self.folder, say=None)
                break
            except (ArtifactError, FileNotFoundError) as error:
                turn.wait(error, "has ended the stage, of which no shard is left to play")
        return self.go(argv)

    def _up_to_date(self, identity: Mapping[str, Any]) -> str | None:
        """Returns what to say if the stage is complete as wanted; refuses other settings and inputs."""
        manifest = read_manifest(self.folder)
        if manifest is None:
            return None
        refuse_if_changed(self.folder, manifest, identity, complete=True)
        check_sizes(self.folder, manifest)
        if self.lock or not holder(self.folder):  # as a stage leaves it that was cut off at its end
            remove_spent(self.folder)
            remove_temporaries(self.folder)
        where = f"{self.folder}, {manifest['content_digest'][:8]}"
        return f"{self.stage.name}: up to date ({where})\n{Counts(**manifest['counts'])}"

    def _repaired(self, identity: Mapping[str, Any]) -> str | None:
        """Returns what to say if a complete stage is sound; a damaged one is set aside, to be made again."""
        try:
            manifest, plan = read_manifest(self.folder), read_plan(self.folder)
            if manifest is None or plan is None:
                return None
            if manifest["stage_key"] == identity["stage_key"]:
                Artifact.open(self.folder.parent, self.stage.name).verify()
        except ArtifactError as error:
            if isinstance(error, OtherLayoutError):
                raise
            self.screen.tell(f"repair: {error}")
            self._set_aside()
            return None
        refuse_if_changed(self.folder, manifest, identity, complete=True)
        return f"{self.stage.name}: nothing to repair, every digest is right ({self.folder})"

    def _set_aside(self) -> None:
        """Renames the folder to `<run>/_old/<stage>-NNN` and begins a new one, locked; nothing is deleted."""
        assert self.lock is not None
        if leases := players(self.folder):
            raise ArtifactError(
                f"{self.folder}: others play its shards ({names(leases)}), so it cannot be set aside. Next: "
                "let them finish, or stop them and run this again",
                code=ExitCode.LOCKED,
            )
        if any(path.name != "_lock" for path in self.folder.iterdir()):
            old = self.folder.parent / "_old"
            old.mkdir(exist_ok=True)
            number = 0
            while (target := old / f"{self.stage.name}-{number:03d}").exists():
                number += 1
            os.rename(self.folder, target)
            self.folder.mkdir()
            former, self.lock = self.lock, Lock(self.folder)  # at once: a helper may wait for it
            former.release()
            fsync(old)
            fsync(self.folder.parent)
            self.screen.tell(f"the old folder is now {target}")

    def judge(self, error: BaseException) -> tuple[ExitCode, str]:
        """Returns exit code and message for what ended the stage."""
        if isinstance(error, StopRequested):
            return ExitCode.STOPPED, f"stopped early by {error}. Next: the same command goes on from here"
        if isinstance(error, WorkerDiedError) and self.stop.signal is not None:
            # A scheduler tells all processes, workers among them.
            return ExitCode.STOPPED, f"stopped early by {self.stop.signal.name}. {error}"
        if isinstance(error, WorkerDiedError) and error.code == ExitCode.STOPPED:
            return self._judge_death(error)
        if self.start is not None:
            self.start.log("".join(traceback.format_exception(error)))
        if explained := explain(error, self.folder.parent):
            return explained
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
        return ExitCode.DEFECT, f"a defect: {type(error).__name__}: {error}. What was committed stays"

    def _judge_death(self, error: WorkerDiedError) -> tuple[ExitCode, str]:
        """Returns code and message for a worker that was killed: another start may do, but not for ever."""
        there = committed(self.folder)
        number = next_start(self.folder) - 1
        earlier = [f"start_{number - back:03d}" for back in range(1, MAX_STARTS_IN_VAIN)]
        leads = self.start is not None and self.start.leads
        if leads and all(lost_at(self.folder / "logs" / name) == there for name in earlier):
            said = "starts running lost a worker and committed nothing between; another would too"
            return ExitCode.FAILED_ITEMS, f"{MAX_STARTS_IN_VAIN} {said}. The last: {error}"
        self.lost_at = there
        return ExitCode.STOPPED, str(error)

    def leave(self, code: ExitCode, message: str) -> None:
        """Writes exit.json and gives the lock back, whatever happened."""
        if self.start is not None:
            self.start.close()
            meaning = code.name.lower()
            record = {"code": int(code), "meaning": meaning, "message": message, "lost_at": self.lost_at}
            self.start.log(f"exit {int(code)} ({meaning}): {message}")
            # A log: no draft that a kill would leave behind, and `_lost_at` reads past half of one.
            with contextlib.suppress(OSError):
                (self.start.log_folder / "exit.json").write_text(json.dumps(record, indent=1), "utf-8")
        if self.nodes is not None:
            self.nodes.end(code, message)
        if self.lock is not None:
            with contextlib.suppress(OSError):
                self.lock.release()
