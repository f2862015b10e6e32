"""Probes of a frozen critic: one step of an audited rollout changed, replayed, scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from critics.audit.probes import Probed
from env.play.edited_steps import Edit, changed_state
from pipeline.ids import digest
from pipeline.types import Rollout, Task

if TYPE_CHECKING:
    from critics.frozen.contract import FrozenCritic
    from env.play.player import Player
    from env.protocol import ChatStyle


def probe(
    edits_of: Callable[[Rollout, int, ChatStyle], list[Edit]],
    player: Player,
    critic: FrozenCritic,
    rollouts: Sequence[Rollout],
    values: Mapping[str, np.ndarray],
    tasks: Mapping[str, Task],
    *,
    num_rollouts: int,
) -> Probed:
    """Returns the critic's values before and after each kind of change, one of a kind per rollout.

    Which step is changed follows from the rollout's seed. Another task's prompt comes from the next rollout
    of another cluster.

    Args:
        edits_of: the environment's `probe_edits`: (rollout, level, style) -> legal changes of it.
        player: of the rollouts; replays them.
        critic: scores the changed states.
        rollouts: with values, of any order; bare ones are probed.
        values: rollout_id -> [T] calibrated values.
        tasks: by id.
        num_rollouts: how many rollouts to change; chosen by their seeds.
    """
    bare = [rollout for rollout in rollouts if not rollout.guided]
    ordered = sorted(bare, key=lambda r: digest("probed", r.seed))[:num_rollouts]
    rows: list[tuple[str, str, float]] = []
    states: list[Rollout] = []
    for place, rollout in enumerate(ordered):
        task = tasks[rollout.task_id]
        others = (
            other.prompt_token_ids
            for other in (*ordered[place + 1 :], *ordered[:place])
            if tasks[other.task_id].cluster != task.cluster
        )
        foreign = next(others, None)
        done: set[str] = set()
        env = player.make_env(task)
        for edit in _in_hash_order(edits_of(rollout, task.level, player.style), rollout.seed):
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
                rows.append((edit.kind, task.cluster, float(values[rollout.rollout_id][edit.compare])))
                states.append(state)
        env.close()
    after = critic.values(states)
    return Probed.of([(*row, float(v[0])) for row, v in zip(rows, after, strict=True)])


def _in_hash_order(edits: Sequence[Edit], seed: int) -> list[Edit]:
    return sorted(edits, key=lambda edit: digest(seed, edit.kind, edit.start))
