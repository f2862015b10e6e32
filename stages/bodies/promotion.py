"""Plays the traffic of both arms look by look, until the rule decides; writes the verdict and its page."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

from env.catalog import offer_of
from env.play.chains import Chained
from env.play.shards import commit_rollouts, play_shards
from env.play.team import Job
from env.play.units import Played
from pipeline.columns import MONITORING
from pipeline.promotion import LOOKS, Arm, Decision, decide
from pipeline.runner import Start
from pipeline.schema import table_of
from pipeline.types import Rollout
from stages.promotion import ARMS, Part
from stages.settings import Config
from stages.wiring.hands import Recipe, make_hands, unasked
from stages.wiring.inputs import policies_of, rollouts_of
from stages.wiring.monitoring import monitoring_row
from stages.wiring.promotion_report import promotion_page


def make(start: Start[Config], parts: list[Part]) -> None:
    """Plays until a look decides, then skips the rest; a start after a kill comes to the same looks."""
    policies = policies_of(start.config)
    recipes = {
        arm: Recipe(unasked(start.config), start.inputs[stage].path(folder))
        for arm, (stage, folder) in zip(ARMS, policies.values(), strict=True)
    }

    def job_of(index: int) -> Job:
        return recipes[parts[index].arm], Chained(
            parts[index].groups,
            seed=start.config.run.sampling_seed,
            purpose="promotion",
            max_feedback_tokens=start.config.prompt.max_feedback_tokens,
            stop_at_success=True,
        )

    looks: list[Decision] = []
    offer = offer_of(start.config.tasks.environment)
    with closing(make_hands(start.config, start.log_folder)) as hands:
        for look in range(LOOKS):
            of_look = [index for index, part in enumerate(parts) if part.look == look]
            for shard, played in play_shards(hands, start.shards, job_of, start.shards.item_done, of_look):
                commit_rollouts(start.shards, shard, played)
            rows = [
                monitoring_row(start.config.run.round, arm, played_by(start, parts, arm, look), offer)
                for arm in ARMS
            ]
            baseline, candidate = (Arm(row["reward_sum"], row["rollouts"], row["failed"]) for row in rows)
            looks.append(decide(candidate, baseline))
            start.say(f"look {look + 1}: {looks[-1].verdict} ({candidate} against {baseline})")
            if looks[-1].verdict != "continue":
                break
    for shard in start.shards.to_do():
        commit_rollouts(start.shards, shard, Played([], {"decided_earlier": len(shard.item_ids)}))
    stage, folder = policies["actor"]
    verdict = {
        "decision": looks[-1].verdict,
        "looks": [asdict(look) for look in looks],
        "candidate": {"stage": stage, "folder": folder},
    }
    report = {**verdict, "round": start.config.run.round, "monitoring": rows}
    start.output("report.html", volatile=True).write_text(promotion_page(report), encoding="utf-8")
    table = table_of(MONITORING, {name: [row[name] for row in rows] for name in MONITORING.schema.names})
    start.finish(more_tables=((MONITORING, table),), report=report, verdict=verdict)


def played_by(start: Start[Config], parts: Sequence[Part], arm: str, last_look: int) -> list[Rollout]:
    """Returns an arm's rollouts up to a look; after a kill there may be some of a later one."""
    ids = {
        name
        for part in parts
        if part.arm == arm and part.look <= last_look
        for group in part.groups
        for name in group.rollout_ids
    }
    return [rollout for rollout in rollouts_of(start.shards) if rollout.rollout_id in ids]
