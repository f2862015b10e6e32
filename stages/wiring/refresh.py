"""Refreshes the critic for the present actor: rollouts, labels, critic and critic_report in an own run.

The run's starting policy is the actor's weights, taken as they are. Its folder,
`refresh/<iteration>-<policy>` beside the actor's, is a run like any other: it can be looked at, verified,
and goes on where it was stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from env.play.player import Player
from pipeline.errors import ArtifactError, ExitCode
from stages.wiring.cards import serve_folder

if TYPE_CHECKING:
    from pipeline.artifacts.runner import Start
    from pipeline.training import Trainer

STAGES = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report")
ROOT = Path(__file__).resolve().parents[2]


def refresh(start: Start, trainer: Trainer, player: Player, iteration: int) -> Path:
    """Returns the folder of a run with a critic made and judged for the trainer's present weights.

    If a stage of it ends with code QUALITY, the run ends there and has no verdict: from rollouts that all end
    alike nothing can be learned, and a fit that diverged would diverge again.

    Args:
        start: of the actor stage.
        trainer: of the actor.
        player: of the same weights.
        iteration: before which it is made.

    Raises:
        ArtifactError: a stage of it failed otherwise; what it made stays.
        StopRequested: asked to stop; the same call goes on from what was made.
    """
    home = start.run_dir.resolve() / "refresh"
    name = f"{iteration:05d}-{player.engine.policy_digest[:8]}"
    policy = home / "policies" / name
    policy.mkdir(parents=True, exist_ok=True)
    trainer.export(policy)
    serve_folder(start, policy, player.tokenizer)
    trainer.offload()
    player.engine.sleep()
    config = home / f"{name}.yaml"
    config.write_text(
        yaml.safe_dump(refresh_settings(start.config.model_dump(mode="json"), home, name, policy))
    )
    for stage in STAGES:
        command = [sys.executable, "-m", f"stages.{stage}", str(config)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
        start.stop_if_asked()  # a scheduler tells all processes; then the stage has stopped as well
        if done.returncode == ExitCode.QUALITY:
            break
        if done.returncode:
            raise ArtifactError(
                f"the refresh of the critic before iteration {iteration} ended with {done.returncode} in its "
                f"stage {stage}, run {home / name}; its message is above. Next: remove the cause, then the "
                "same command goes on",
                code=exit_code(done.returncode),
            )
    return home / name


def exit_code(returncode: int) -> ExitCode:
    """Returns what a stage's exit status means; one that no stage gives, as after a kill, is a defect.

    Example:
        >>> exit_code(4).name, exit_code(-9).name
        ('QUALITY', 'DEFECT')
    """
    known = {int(code) for code in ExitCode}
    return ExitCode(returncode) if returncode in known else ExitCode.DEFECT


def refresh_settings(settings: dict[str, Any], home: Path, name: str, policy: Path) -> dict[str, Any]:
    """Returns the settings of the refreshing run: the actor's own, from its weights as they are."""
    changed = {key: dict(section) for key, section in settings.items()}
    changed["run"] |= {"name": name, "data_dir": str(home)}
    changed["sft"] |= {"base": str(policy), "num_updates": 0}
    return changed


def gate_of(run_dir: Path) -> dict[str, Any] | None:
    """Returns the verdict on a refreshed critic; None if its run ended before there was one."""
    path = run_dir / "critic_report" / "gate.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None
