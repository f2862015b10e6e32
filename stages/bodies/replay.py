"""Puts a round's rollouts behind the buffer of the round before, and drops the oldest."""

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.artifacts.artifact import Artifact
from pipeline.columns import REPLAY, ROLLOUTS, STEPS
from pipeline.errors import ArtifactError
from pipeline.runner import Start
from pipeline.schema import table_of
from stages.replay import Work
from stages.settings import Config


def make(start: Start[Config], work: Work) -> None:
    """Makes the tables; raises ArtifactError for rollouts that this round's policy cannot learn from.

    A promotion that was taken back after the earlier buffer was made leaves rollouts in it; they go.
    """
    (earlier, teachers), own = work, start.inputs["rollouts"]
    rollouts, steps = own.table("rollouts"), own.table("steps")
    rounds, again, taken_back = [start.config.run.round] * rollouts.num_rows, 0, 0
    if earlier is not None:
        before, of = earlier.table("rollouts"), earlier.table("replay")["round"]
        counts = pc.is_in(of, pa.array(teachers, of.type))
        before, of = before.filter(counts), of.filter(counts)
        taken_back = len(counts) - len(of)
        stays = is_new(before, rollouts)
        again = pc.sum(pc.invert(stays)).as_py() or 0
        rounds = of.filter(stays).to_pylist() + rounds
        rollouts = pa.concat_tables([before.filter(stays), rollouts])
        steps = pa.concat_tables([earlier.table("steps"), steps])
    dropped = max(0, len(rounds) - start.config.replay.capacity)
    rollouts, rounds = rollouts.slice(dropped), rounds[dropped:]
    steps = steps.filter(pc.is_in(steps["rollout_id"], rollouts["rollout_id"].combine_chunks()))
    refuse_strangers(rollouts, own, start.inputs["tasks"])
    ids = rollouts["rollout_id"].to_pylist()
    kept = Counter(rounds)
    report = {
        "rollouts": len(ids),
        "of_round": {str(of): kept[of] for of in sorted(kept)},
        "dropped": dropped,
        "taken_back": taken_back,
        "recorded_again": again,
    }
    start.finish(
        done=1,
        more_tables=(
            (ROLLOUTS, rollouts),
            (STEPS, steps),
            (REPLAY, table_of(REPLAY, {"rollout_id": ids, "round": rounds})),
        ),
        report=report,
    )


def is_new(earlier: pa.Table, own: pa.Table) -> pa.Array:
    """Returns which earlier rollouts stay: all but recorded ones that this round has brought in again.

    A file of sessions that grows from week to week holds those of the weeks before.
    """

    def contents(rollouts: pa.Table) -> list[tuple[object, ...]]:
        recorded = pc.equal(rollouts["kind"], "recorded").to_pylist()
        columns = (rollouts[c].to_pylist() for c in ("task_id", "prompt_token_ids", "response_token_ids"))
        return [
            (task, tuple(prompt), tuple(response)) if is_recorded else ()
            for is_recorded, task, prompt, response in zip(recorded, *columns, strict=True)
        ]

    there = set(contents(own)) - {()}
    return pa.array([content not in there for content in contents(earlier)], pa.bool_())


def refuse_strangers(rollouts: pa.Table, own: Artifact, tasks: Artifact) -> None:
    """Raises ArtifactError unless all are of training tasks, encoded as the rollouts of `own` are."""
    known = tasks.table("tasks").filter(pc.field("split") == "train")["task_id"].combine_chunks()
    strange = rollouts.num_rows - pc.sum(pc.is_in(rollouts["task_id"], known)).as_py()
    if strange:
        raise ArtifactError(
            f"{strange} of {rollouts.num_rows} rollouts of the replay buffer are of no training task of this "
            "run: its tasks were made again after an earlier round. Next: another run (RUN=name)"
        )
    for column in ("tokenizer_digest", "template_digest"):
        wanted = set(own.table("rollouts")[column].to_pylist())
        if others := set(rollouts[column].to_pylist()) - wanted:
            raise ArtifactError(
                f"rollouts of earlier rounds have {column} {', '.join(sorted(d[:12] for d in others))}, this "
                f"round's {', '.join(sorted(d[:12] for d in wanted))}: their tokens mean something else. "
                "Next: the prompt and the policy that earlier rounds had, or another run (RUN=name)"
            )
