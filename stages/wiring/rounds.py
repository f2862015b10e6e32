"""A numbered round of a run: itself a run, which begins with what is served and ends with promotion."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import make_folder
from pipeline.artifacts.link import link_stage
from pipeline.artifacts.lock import Lock
from pipeline.config import config_of
from pipeline.errors import ArtifactError, ConfigError, ExitCode
from pipeline.processes.failpoints import failpoint
from pipeline.runs import ROUNDS, rounds_of
from pipeline.served import Served, due, settle, verdict_of
from stages.settings import Config
from stages.settings.rounds import CHANGES
from stages.wiring.arms import chain_of
from stages.wiring.inputs import policies_of
from stages.wiring.subrun import finish_stage, write_config

FIXED = ("run", "tasks", "sft")
"""Sections that are the same in all rounds, or follow from what is served."""


def play_round(
    config: Config,
    number: int | None = None,
    *,
    say: Callable[[str], None] = print,
    stop_if_asked: Callable[[], None] = lambda: None,
    finish: Callable[[str, Path], int] | None = None,  # a stage to its end
) -> tuple[int, dict[str, Any]]:
    """Plays or finishes a round, by default the last one if it is not decided, else the next.

    Returns its number and its verdict; then the pointer names what is served from now on. Raises
    ArtifactError with the exit code of a stage that did not end well; the same call goes on.
    """
    run_dir = Path(config.run.data_dir).resolve() / config.run.name
    own = policies_of(config)["actor"]
    finish = finish or partial(finish_stage, stop_if_asked=stop_if_asked)
    for needed in ("tasks", own[0]):  # before anything is made
        Artifact.open(run_dir, needed)
    home = run_dir / ROUNDS
    make_folder(home, f"run.data_dir = {config.run.data_dir}")
    lock = Lock(home)
    try:
        settle(run_dir, own)
        number = number or _next_round(run_dir)
        baseline = due(run_dir, own, before=number)
        made = round_config(config, run_dir, number, baseline)
        folder = home / made.run.name
        file = write_config(made.model_dump(mode="json"), home, made.run.name)
        if not (folder / "tasks").exists():
            link_stage(run_dir / "tasks", folder / "tasks")
        chain = chain_of(made, "evaluation", "promotion")
        of = f"round {baseline.round}" if baseline.round else f"the run's {baseline.stage}"
        say(f"round {number}: begins with the policy of {of}; stages: {', '.join(chain)}")
        failpoint("round.begun")
        for stage in chain:
            stop_if_asked()
            if code := finish(stage, file):
                stop_if_asked()  # a scheduler tells all processes; then the stage has stopped as well
                raise ArtifactError(*_words(number, stage, file, code))
            failpoint("round.stage_done")
        verdict = verdict_of(folder)
        assert verdict is not None
        served = settle(run_dir, own)
    finally:
        lock.release()
    say(
        f"round {number}: {verdict['decision']}; served is the policy of round {served.round} "
        f"({served.run}/{served.stage}/{served.folder})"
    )
    return number, verdict


def _words(number: int, stage: str, file: Path, code: int) -> tuple[str, ExitCode]:
    """Returns message and code of a round that a stage has ended."""
    known = ExitCode(code) if code in set(ExitCode) else ExitCode.DEFECT  # no stage's, as of a kill
    again = "the same command goes on"
    if known == ExitCode.QUALITY:
        again = f"mend its cause, then {again}; or SET='--round {number + 1}' leaves this round as it is"
    if known == ExitCode.FAILED_ITEMS:
        again = f"remove the cause, then make {stage} CONFIG={file} SET=--repair, then {again}"
    return (
        f"round {number} ended with {code} in its stage {stage} (configuration {file}); see above. "
        f"What was served before is served still. Next: {again}"
    ), known


def _next_round(run_dir: Path) -> int:
    number, folder = rounds_of(run_dir)[-1] if rounds_of(run_dir) else (0, run_dir)
    return number if number and verdict_of(folder) is None else number + 1


def round_config(config: Config, run_dir: Path, number: int, baseline: Served) -> Config:
    """Returns the configuration of a round: its sft is what is served, its seed of sampling its own.

    Raises ConfigError if `round.changes` touches what all rounds share.
    """
    policy = run_dir / baseline.run / baseline.stage / baseline.folder
    data = config.model_dump(mode="json")
    data["run"] |= {"name": f"{number:03d}", "data_dir": str(run_dir / ROUNDS), "round": number}
    data["sft"] |= {"base": str(policy), "num_updates": 0, "data": None}
    data["rollouts"] |= {"num_tasks": data["rollouts"]["num_tasks"] or None, "solutions": None}
    data["preferences"] |= {"recorded": None}
    changes = {**CHANGES, **config.round.changes}
    if touched := sorted(key for key in config.round.changes if key.split(".")[0] in FIXED):
        raise ConfigError(
            f"round.changes names {', '.join(touched)}; the sections {', '.join(FIXED)} are the same in all "
            "rounds or follow from what is served. Next: leave these out, or set them for the whole run"
        )
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    return config_of(Config, data, overrides, "round.changes")


def teachers(home: Path, number: int) -> dict[int, Path]:
    """Returns number -> folder of the rounds before a number that ended without a roll back.

    What taught a refused candidate, wrong grades perhaps, teaches no later one.
    """
    return {
        earlier: folder
        for earlier, folder in rounds_of(home.parent)
        if earlier < number and (verdict_of(folder) or {}).get("decision") in ("promote", "continue")
    }
