"""What a run consists of: its stages in order, and the runs inside it."""

from pathlib import Path

from pipeline.errors import ArtifactError

MAIN_CHAIN = (
    *("tasks", "sft", "rollouts", "labels", "critic", "critic_report"),
    *("stored", "actor", "evaluation"),
)
ROUND_CHAIN = (
    *MAIN_CHAIN[: MAIN_CHAIN.index("stored")],
    *("replay", "stored", "preferences", "dpo", "actor", "evaluation", "promotion"),
)
"""Stages that a round may have, in order."""
REFRESHES = "refresh"
"""Folder of a run that holds runs of their own: one for each critic that was made again for an actor."""
ARMS = "arms"
"""Folder of a comparison that holds its runs: one for each arm and seed."""
ROUNDS = "rounds"
"""Folder of a run that holds its rounds, runs of their own, and the pointer to the policy that is served."""


def stages_of(run_dir: Path) -> list[str]:
    """Returns the main chain's stages, then every other stage folder; raises ArtifactError for no folder."""
    if not run_dir.is_dir():
        raise ArtifactError(f"{run_dir} is no folder; give that of a run, such as data/demo")
    begun = {
        path.parent.name for name in ("plan.json", "manifest.json") for path in run_dir.glob(f"*/{name}")
    }
    return [*MAIN_CHAIN, *sorted(begun - set(MAIN_CHAIN))]


def refreshes_of(run_dir: Path) -> list[Path]:
    """Returns the runs inside a run that refreshed its actor's critic, in order."""
    return _runs_in(run_dir / REFRESHES)


def inner_runs(run_dir: Path) -> list[Path]:
    """Returns the runs inside a run: its refreshes, arms and rounds, each with those inside it."""
    inner = [run for name in (REFRESHES, ARMS, ROUNDS) for run in _runs_in(run_dir / name)]
    return [each for run in inner for each in (run, *inner_runs(run))]


def rounds_of(run_dir: Path) -> list[tuple[int, Path]]:
    """Returns (number, folder) of the rounds of a run, in order."""
    return sorted((int(path.name), path) for path in (run_dir / ROUNDS).glob("[0-9]*") if path.name.isdigit())


def _runs_in(folder: Path) -> list[Path]:
    return sorted({path.parents[1] for path in folder.glob("*/*/plan.json")})
