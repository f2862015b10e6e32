"""Probes of a frozen critic: one step of an audited rollout changed, replayed, scored."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from critics.audit.probes import Probed
from critics.frozen.critic import FrozenCritic
from env.catalog import offer_of
from env.offer import Edit
from env.play.edited_steps import changed_state
from env.play.player import Player
from env.play.team import Team
from pipeline.ids import digest
from pipeline.types import Rollout, Task


def probe(
    environment: str,
    team: Team,
    critic: FrozenCritic,
    rollouts: Sequence[Rollout],
    values: Mapping[str, np.ndarray],
    tasks: Mapping[str, Task],
    *,
    num_rollouts: int,
) -> Probed:
    """Returns the critic's values before and after each kind of change, one of a kind per bare rollout.

    `values` are [T] and calibrated, by rollout_id; the rollouts are chosen by their seeds, and one player of
    the team replays them.
    """
    bare = [rollout for rollout in rollouts if not rollout.guided]
    ordered = sorted(bare, key=lambda r: digest("probed", r.seed))[:num_rollouts]
    probed_tasks = {rollout.task_id: tasks[rollout.task_id] for rollout in ordered}
    changed = team.ask(partial(changed_states, environment, ordered, probed_tasks))
    after = critic.values([state for _, _, state in changed])
    return Probed.of(
        [
            (edit.kind, tasks[r.task_id].cluster, float(values[r.rollout_id][edit.compare]), float(v[-1]))
            for (r, edit, _), v in zip(changed, after, strict=True)
        ]
    )


def changed_states(
    environment: str, rollouts: Sequence[Rollout], tasks: Mapping[str, Task], player: Player
) -> list[tuple[Rollout, Edit, Rollout]]:
    """Returns rollouts, what is changed in them, and the states up to it: one change of a kind per rollout.

    Which step is changed follows from the rollout's seed. Another task's prompt comes from the next rollout
    of another cluster.
    """
    edits_of = offer_of(environment).probe_edits
    if edits_of is None:
        return []
    changed: list[tuple[Rollout, Edit, Rollout]] = []
    for place, rollout in enumerate(rollouts):
        task = tasks[rollout.task_id]
        others = (
            other.prompt_token_ids
            for other in (*rollouts[place + 1 :], *rollouts[:place])
            if tasks[other.task_id].cluster != task.cluster
        )
        foreign = next(others, None)
        done: set[str] = set()
        env = player.make_env(task)
        edits = edits_of(rollout, task.level, player.style)
        for edit in sorted(edits, key=lambda edit: digest(rollout.seed, edit.kind, edit.start)):
            if edit.kind in done or (edit.other_prompt and foreign is None):
                continue
            state = changed_state(
                rollout,
                task,
                edit,
                env=env,
                style=player.style,
                tokenizer=player.tokenizer,
                max_length=player.engine.max_length,
                other_prompt=foreign or (),
            )
            if state is not None:
                done.add(edit.kind)
                changed.append((rollout, edit, state))
        env.close()
    return changed
