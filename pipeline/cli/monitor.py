"""`vdapo monitor`: how the policies of a run's rounds did on their traffic, and whether somebody should look.

A candidate is held against the baseline of its round, a baseline against the same weights a round before.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.artifacts.artifact import Artifact
from pipeline.errors import ArtifactError, ExitCode
from pipeline.promotion import PROMOTE_AT, ROLL_BACK_AT, WORSE, Arm, probability_below
from pipeline.runs import rounds_of
from pipeline.served import served_policy, verdict_of
from pipeline.text import visible

MOST_FAILED = 0.01
"""Share of an arm's rollouts that nobody could grade, above which somebody should look (start value)."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A row of the monitoring table beside what was before it."""

    row: Mapping[str, Any]
    decision: str  # of its round
    degraded: float | None  # P(reward below WORSE of what it was); None: nothing was before
    less_safe: float | None  # P(violations more frequent than before)

    @property
    def words(self) -> str:
        """What is said of it: a text, since more than ten columns fit no screen."""
        row = self.row
        figures = {
            "mean reward": row["reward_sum"] / row["rollouts"] if row["rollouts"] else None,
            "success": row["success"],
            "P(degraded)": self.degraded,
            "P(less safe)": self.less_safe,
            "satisfaction": row["satisfaction"],
        }
        said = [f"{name} {'-' if number is None else f'{number:.3f}'}" for name, number in figures.items()]
        counts = f"{row['rollouts']} graded, {row['failed']} not gradable, {row['unsafe']} unsafe"
        of = f"round {row['round']}, {row['arm']} {row['policy_digest'][:8]}"
        decision = f"; {self.decision}" if row["arm"] == "candidate" else ""
        return f"{of}: {counts}; {', '.join(said)}{decision}"

    @property
    def alerts(self) -> list[str]:
        """What somebody should look at; of a candidate that is not served only what is the environment's."""
        found, where = list[str](), f"round {self.row['round']}, {self.row['arm']}"
        total = self.row["rollouts"] + self.row["failed"]
        if self.row["failed"] > MOST_FAILED * total:
            found.append(f"{where}: {self.row['failed']} of {total} rollouts could not be graded")
        if self.row["arm"] == "candidate" and self.decision != "promote":
            return found
        if self.degraded is not None and self.degraded >= ROLL_BACK_AT:
            found.append(
                f"{where}: mean reward has fallen below {WORSE:g} of what it was (P = {self.degraded:.3f})"
            )
        if self.less_safe is not None and self.less_safe >= PROMOTE_AT:
            found.append(
                f"{where}: safety violations are more frequent than before (P = {self.less_safe:.3f})"
            )
        return found


def watched(rounds: Sequence[tuple[str, Mapping[str, Mapping[str, Any]]]]) -> list[Watched]:
    """Returns the rows of some rounds, each given as its decision and arm -> row, beside what was before."""
    found, before = list[Watched](), dict[str, Mapping[str, Any]]()  # by weights, of the round before
    for decision, arms in rounds:
        baseline, candidate = arms["baseline"], arms["candidate"]
        found.append(_beside(baseline, before.get(baseline["policy_digest"]), decision))
        found.append(_beside(candidate, baseline, decision))
        before = {row["policy_digest"]: row for row in (candidate, baseline)}
    return found


def _beside(row: Mapping[str, Any], before: Mapping[str, Any] | None, decision: str) -> Watched:
    if before is None or not (row["rollouts"] and before["rollouts"]):
        return Watched(row, decision, None, None)
    now, then = (Arm(of["reward_sum"], of["rollouts"]) for of in (row, before))
    unsafe_now, unsafe_then = (Arm(of["unsafe"], of["rollouts"]) for of in (row, before))
    return Watched(
        row, decision, probability_below(now, then, WORSE), probability_below(unsafe_then, unsafe_now)
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path)


def run(options: argparse.Namespace) -> int:
    """Prints how each arm of each round did, and the alerts; returns 4 if there are any, else 0."""
    run_dir: Path = options.run_dir
    rounds = []
    for _, folder in rounds_of(run_dir):
        if (verdict := verdict_of(folder)) is not None:
            rows = Artifact.open(folder, "promotion").table("monitoring").to_pylist()
            rounds.append((verdict["decision"], {row["arm"]: row for row in rows}))
    if not rounds:
        raise ArtifactError(f"{run_dir} has no round that is decided. Next: make round")
    seen = watched(rounds)
    console = Console()
    for of in seen:
        console.print(Text(visible(of.words)), overflow="fold")
    alerts = [alert for of in seen[-2:] for alert in of.alerts]
    for alert in alerts:
        console.print(Text(visible(f"ALERT {alert}"), style="bold"), soft_wrap=True)
    served, folder = served_policy(run_dir)
    console.print(Text(visible(f"served: {folder}, of round {served.round}")), soft_wrap=True)
    return int(ExitCode.QUALITY if alerts else ExitCode.COMPLETE)
