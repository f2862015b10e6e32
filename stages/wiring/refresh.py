"""Makes a critic for the present actor: rollouts, labels, critic and report in an own run.

Its folder, `refresh/<iteration>-<policy>` beside the actor's, can be looked at and verified as any run's.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from critics.drift.state import DriftState
from pipeline.errors import ArtifactError, ExitCode
from pipeline.planner.processes import CONTEXT_BYTES, GIB
from pipeline.runner import Start
from pipeline.runs import MAIN_CHAIN, REFRESHES
from stages.settings import Config
from stages.settings.credit import VDapo
from stages.wiring.refusals import override_words, stamp_of
from stages.wiring.subrun import finish_stage, write_config

STAGES = MAIN_CHAIN[: MAIN_CHAIN.index("critic_report") + 1]


def policy_folder(run_dir: Path, iterations: int, policy_digest: str) -> Path:
    """Returns where the actor's weights are exported to; the run that makes their critic has its name."""
    folder = run_dir.resolve() / REFRESHES / "policies" / f"{iterations:05d}-{policy_digest[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def critic_folder(run_dir: Path, refresh_runs: Sequence[str], *, has_own: bool) -> Path | None:
    """Returns the folder of the last refreshed critic, else of the run's own one, if it has one."""
    known = refresh_runs or has_own
    return run_dir.joinpath(*refresh_runs[-1:], "critic", "critic") if known else None


def first_gate(start: Start[Config], state: DriftState) -> dict[str, Any] | None:
    """Returns the gate of the critic an actor starts with: its run's or one made for it; None without."""
    if "critic_report" in start.inputs:
        path = start.inputs["critic_report"].path("gate.json")
    elif state.refresh_runs:
        path = start.run_dir / state.refresh_runs[0] / "critic_report" / "gate.json"
    else:
        return None
    gate: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return gate


def refreshed(
    state: DriftState,
    config: Config,  # of the actor's run
    policy: Path,  # the actor's weights, in its `policy_folder`
    policy_digest: str,
    contexts: Sequence[str],  # that the actor trains in
    say: Callable[[str], None],
    stop_if_asked: Callable[[], None],  # raises if a signal came
) -> DriftState:
    """Returns the watch's state after a critic was made for these weights, or could not be.

    Its stages ask for the GPUs, so the caller must hold nothing on them, but for the context that a process
    keeps. Raises ArtifactError if one of them failed, or this critic is refused; the same call goes on from
    what was made.
    """
    home, name = policy.parents[1], policy.name
    settings, credit = config.model_dump(mode="json"), config.actor.credit
    if not isinstance(credit, VDapo):
        raise TypeError(f"{credit.mode} has no critic to refresh")
    is_first = credit.drift.react == "refresh_first"  # the actor has none before
    tasks = credit.drift.refresh_tasks or config.rollouts.num_tasks or None
    settings["sft"] |= {"base": str(policy), "num_updates": 0, "data": None}  # its weights as they are
    settings["rollouts"] |= {"num_tasks": tasks, "solutions": None}  # its own rollouts alone
    wanted = config.hardware.gpu_memory_gib - CONTEXT_BYTES / GIB  # of this process, for as long as it lives
    settings["hardware"]["gpu_memory_gib"] = max(0.0, wanted)
    file = write_config(settings, home, name)
    for stage in STAGES:
        code = finish_stage(stage, file, stop_if_asked)
        stop_if_asked()  # a scheduler tells all processes; then the stage has stopped as well
        if code == ExitCode.QUALITY:  # a retry would meet the same rollouts
            break
        if code:
            raise ArtifactError(
                f"the refresh of the critic ended with {code} in its stage {stage}, run {home / name}; its "
                "message is above. Next: remove the cause, then the same command goes on",
                code=ExitCode(code) if code in set(ExitCode) else ExitCode.DEFECT,  # no stage's, as of a kill
            )
    path, run = home / name / "critic_report" / "gate.json", f"{REFRESHES}/{name}"
    if is_first and not path.exists():
        raise ArtifactError(
            f"no critic could be made of what the actor plays as it starts ({run}): its message is above. "
            "Next: more tasks for it (actor.credit.drift.refresh_tasks), or the run's own critic "
            "(actor.credit.drift.react: correct)",
            code=ExitCode.QUALITY,
        )
    if not path.exists():
        say(f"drift: no critic could be made of what this actor plays ({run}); the step weight is 0 now")
        return state.not_refreshed(run)
    gate = json.loads(path.read_text("utf-8"))
    say(f"drift: the critic was refreshed; its gate says {gate['verdict']}")
    on_weak_critic = credit.on_weak_critic if is_first else "group_only"
    stamp = stamp_of(gate, contexts, on_weak_critic)
    if is_first and (words := override_words(stamp)):
        say(words)
    adv_rmse, allowed = gate["adv_rmse"]["value"] or 0.0, stamp["override"] != "group_only"
    return state.refreshed(run, adv_rmse, allowed=allowed, policy_digest=policy_digest)
