"""Refreshes the critic for the present actor: rollouts, labels, critic and report in an own run.

Its folder, `refresh/<iteration>-<policy>` beside the actor's, can be looked at and verified as any run's.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from critics.drift.state import DriftState
from pipeline.cli.runs import MAIN_CHAIN, REFRESHES
from pipeline.errors import ArtifactError, ExitCode
from stages.wiring.refusals import gate_allows

STAGES = MAIN_CHAIN[: MAIN_CHAIN.index("actor")]
ROOT = Path(__file__).resolve().parents[2]


def refresh_name(iterations: int, policy_digest: str) -> str:
    """Returns the name of the run that makes a critic before an iteration, of these weights."""
    return f"{iterations:05d}-{policy_digest[:8]}"


def policy_folder(run_dir: Path, name: str) -> Path:
    """Returns where the actor's weights are exported to for a refresh."""
    folder = run_dir.resolve() / REFRESHES / "policies" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def critic_folder(run_dir: Path, refresh_runs: Sequence[str]) -> Path:
    """Returns the folder of the last refreshed critic, without any of the run's own."""
    return run_dir.joinpath(*refresh_runs[-1:], "critic", "critic")


def refreshed(
    state: DriftState,
    settings: Mapping[str, Any],  # of the actor's run, as JSON values
    run_dir: Path,  # of the actor
    name: str,  # of the refreshing run
    *,
    policy_digest: str,
    contexts: Sequence[str],  # that the actor trains in
    say: Callable[[str], None],
    stop_if_asked: Callable[[], None],  # raises if a signal came
) -> DriftState:
    """Returns the watch's state after a critic was made for the weights in `policy_folder`, or could not be.

    Its stages ask for the GPUs, so the caller must hold nothing on them. Raises ArtifactError if one of them
    failed; the same call goes on from what was made.
    """
    home = run_dir.resolve() / REFRESHES
    config = home / f"{name}.yaml"
    changed = {key: dict(section) for key, section in settings.items()}
    changed["run"] |= {"name": name, "data_dir": str(home)}
    changed["sft"] |= {"base": str(home / "policies" / name), "num_updates": 0}  # its weights as they are
    config.write_text(yaml.safe_dump(changed))
    for stage in STAGES:
        command = [sys.executable, "-m", f"stages.{stage}", str(config)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
        stop_if_asked()  # a scheduler tells all processes; then the stage has stopped as well
        if done.returncode == ExitCode.QUALITY:  # a retry would meet the same rollouts
            break
        if done.returncode:
            raise ArtifactError(
                f"the refresh of the critic ended with {done.returncode} in its stage {stage}, run "
                f"{home / name}; its message is above. Next: remove the cause, then the same command goes on",
                code=exit_code(done.returncode),
            )
    path, run = home / name / "critic_report" / "gate.json", f"{REFRESHES}/{name}"
    gate = json.loads(path.read_text("utf-8")) if path.exists() else None
    if gate is None:
        say(
            f"drift: no critic could be made of what this actor plays ({run}, whose message is above); the "
            "step weight is 0 from now on"
        )
    else:
        say(f"drift: the critic was refreshed; its gate says {gate['verdict']}")
    allowed = gate is not None and gate_allows(gate, contexts, "group_only")
    return state.refreshed(run, gate, allowed=allowed, policy_digest=policy_digest)


def exit_code(returncode: int) -> ExitCode:
    """Returns what a stage's exit status means; one that no stage gives, as after a kill, is a defect.

    Example:
        >>> exit_code(4).name, exit_code(-9).name
        ('QUALITY', 'DEFECT')
    """
    return ExitCode(returncode) if returncode in set(ExitCode) else ExitCode.DEFECT
