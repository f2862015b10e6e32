"""Which policy of a run is served: a pointer that follows from what promotions have decided.

`<run>/rounds/served.json` names a folder in a complete stage of the run. Promotion commits its verdict first;
the pointer is made from the committed verdicts after that, in one atomic step. So whatever is killed, whoever
reads finds the policy that was served before or the promoted one, and the next start settles the rest.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import remove_temporaries, sealed, unsealed, write_durably
from pipeline.artifacts.manifest import read_manifest
from pipeline.errors import ArtifactError
from pipeline.processes.failpoints import failpoint
from pipeline.runs import ROUNDS, rounds_of

POINTER = "served.json"


@dataclass(frozen=True, slots=True)
class Served:
    """A policy that may be served."""

    round: int  # that promoted it; 0: it is the run's own
    run: str  # folder of the run that made it, from this run's folder on
    stage: str  # of that run
    folder: str  # of the policy, in the stage's folder
    content_digest: str  # of the stage


def verdict_of(run_dir: Path) -> dict[str, Any] | None:
    """Returns what the promotion of a round, by its folder, has decided; None if it has not."""
    manifest = read_manifest(run_dir / "promotion")
    return None if manifest is None else {**manifest["verdict"], "inputs": manifest["inputs"]}


def due(run_dir: Path, own: tuple[str, str], before: int | None = None) -> Served:
    """Returns the candidate of the last round that was promoted, else the run's own policy.

    `own` is stage and folder of that one; only rounds with numbers below `before` count. Raises ArtifactError
    if the policy is not there, or was made again after the promotion that judged it.
    """
    for number, folder in reversed(rounds_of(run_dir)):
        if before is not None and number >= before:
            continue
        verdict = verdict_of(folder)
        if verdict is not None and verdict["decision"] == "promote":
            stage = verdict["candidate"]["stage"]
            made = Artifact.open(folder, stage)
            if made.content_digest != verdict["inputs"][stage]:
                raise ArtifactError(
                    f"{made.folder} was made again after promotion judged it (content "
                    f"{verdict['inputs'][stage][:8]} then, {made.content_digest[:8]} now). Next: put the "
                    f"folder back from {folder / '_old'}"
                )
            relative = folder.relative_to(run_dir).as_posix()
            return Served(number, relative, stage, verdict["candidate"]["folder"], made.content_digest)
    return Served(0, ".", *own, Artifact.open(run_dir, own[0]).content_digest)


def settle(run_dir: Path, own: tuple[str, str]) -> Served:
    """Makes the pointer name what is due, if it does not; the caller holds the lock of the rounds' folder.

    Raises ArtifactError if that would serve another policy of the run's own than the one that rounds began
    with: no promotion has judged it.
    """
    home, served = run_dir / ROUNDS, due(run_dir, own)
    remove_temporaries(home)
    was = (
        _pointed_to(home) if any(read_manifest(folder / "sft") for _, folder in rounds_of(run_dir)) else None
    )
    if was and was != served and was.round == served.round == 0:
        raise ArtifactError(
            f"{home / POINTER} names {was.stage}/{was.folder} with content {was.content_digest[:8]}, which "
            f"the rounds so far began with; now it would be {served.stage}/{served.folder} with "
            f"{served.content_digest[:8]}, which no promotion has judged. Next: put the folder back (_old) "
            f"and evaluation.of, or move {home} away: rounds then begin anew with it"
        )
    data = sealed(asdict(served))
    if not (home / POINTER).is_file() or (home / POINTER).read_bytes() != data:
        failpoint("round.pointer.before")
        write_durably(home / POINTER, data, "round.pointer")
        failpoint("round.pointer.swapped")
    return served


def _pointed_to(home: Path) -> Served | None:
    """Returns what a pointer that is there and whole names."""
    try:
        return Served(**unsealed(home / POINTER))
    except (FileNotFoundError, ArtifactError):
        return None


def served_policy(run_dir: Path) -> tuple[Served, Path]:
    """Returns what the pointer names, and the policy's folder, every file of it verified.

    Raises ArtifactError if there is no pointer, or it names anything but the run's own policy or a promoted
    one as it was judged.
    """
    path = run_dir / ROUNDS / POINTER
    try:
        served = Served(**unsealed(path))
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing: no round has begun. Next: make round") from None
    stage = Artifact.open(run_dir / served.run, served.stage)
    verdict = verdict_of(run_dir / served.run) if served.round else None
    promoted = verdict is not None and verdict["decision"] == "promote"
    if stage.content_digest != served.content_digest or (served.round and not promoted):
        raise ArtifactError(
            f"{path} names {stage.folder} with content {served.content_digest[:8]}, which is not there any "
            "more or was never promoted. Next: make round, which settles the pointer by what was decided"
        )
    return served, stage.path(served.folder)
