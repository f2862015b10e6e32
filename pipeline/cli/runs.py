"""What a run consists of: its stages in order, and the runs inside it."""

from __future__ import annotations

from pathlib import Path

MAIN_CHAIN = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report", "actor", "evaluation")
REFRESHES = "refresh"
"""Folder of a run that holds runs of their own: one for each critic that was made again for an actor."""


def stages_of(run_dir: Path) -> list[str]:
    """Returns the main chain's stages, then every other stage folder of a run."""
    others = sorted(
        path.name
        for path in run_dir.iterdir()
        if path.name not in MAIN_CHAIN
        and ((path / "plan.json").exists() or (path / "manifest.json").exists())
    )
    return [*MAIN_CHAIN, *others]


def refreshes_of(run_dir: Path) -> list[Path]:
    """Returns the runs inside a run that refreshed its actor's critic, in order."""
    return sorted(
        path
        for path in (run_dir / REFRESHES).glob("*")
        if any((path / stage / "plan.json").exists() for stage in MAIN_CHAIN)
    )
