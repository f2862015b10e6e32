"""Simple targets in place of the soft ones, each a named ablation: no count of continuations enters them.

They follow from R; bootstrapped ones from the critic's own values too, `rule_decay` from located errors.

    monte_carlo    y_i = R at the fixed steps that an own outcome may label
    td             y_i = V(s_{i+1}), y_{T-1} = R at the same steps, V the critic itself (td_targets.py)
    td_lambda      y_i = (1 - lam) V(s_{i+1}) + lam y_{i+1}
    outcome_dense  y_i = R at every state: one sample labels them all
    rule_decay     R if it is >= .5; else .5 * .9^i up to the first located error of the rollout, then 0

Counts stay as they are, so that all kinds are validated alike; calibration looks at outcomes alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from pipeline.types import Label, Rollout, StateRef

Rule = Literal["monte_carlo", "td", "td_lambda", "outcome_dense", "rule_decay"]
RULES: tuple[str, ...] = get_args(Rule)
BOOTSTRAPPED = ("td", "td_lambda")
OF_OUTCOMES = ("soft", "outcome_dense")
"""Targets that the outcome of a continuation is one of, at each state that it came to."""
OUTCOME_STEPS = (0, 1, 2, 4, 8)
"""States that a rollout's own outcome may label: fixed steps, chosen without looking at the rollout."""
TD_LAM = 0.95
"""Trace decay of `td_lambda`, per step (start value)."""
START, DECAY = 0.5, 0.9
"""Of `rule_decay` (start values)."""


def rule_target(rollout: Rollout, place: int, rule: str) -> float | None:
    """Returns y before the step at a place; None where the rule has none. Of a bootstrapped rule it is R."""
    reward = float(rollout.reward or 0.0)
    if rule == "outcome_dense":
        return reward
    if rule != "rule_decay":
        return reward if rollout.steps[place].step_index in OUTCOME_STEPS else None
    if reward >= 0.5:
        return reward
    first = next((i for i, step in enumerate(rollout.steps) if step.verifier_status == "wrong"), None)
    return START * DECAY**place if first is not None and place <= first else 0.0


def retarget(labels: Sequence[Label], rollouts: Sequence[Rollout], rule: str, *, policy: str) -> list[Label]:
    """Returns the labels of `build_labels` with the targets of one of `RULES`, in the rollouts' order.

    Only rollouts of `policy` are targets. The rule's rows have it as `label_source` and weight 1, and the
    critic is fitted on these alone. Rows that only continuations or the recovery model gave stay for
    validation.
    """
    if rule not in RULES:
        raise ValueError(f"rule {rule!r}; known: {', '.join(RULES)}")
    known = {StateRef(label.rollout_id, label.step_index, label.context): label for label in labels}
    found = []
    for rollout in rollouts:
        usable = (
            rollout.reward is not None and rollout.policy_digest == policy and not rollout.start_step_index
        )
        for place, step in enumerate(rollout.steps):
            state = StateRef(rollout.rollout_id, step.step_index, rollout.context)
            label = known.get(state)
            target = rule_target(rollout, place, rule) if usable else None
            if target is not None:
                blank = Label(
                    state.rollout_id, state.step_index, state.context, 0, 0, None, target, 1.0, rule, policy
                )
                found.append(replace(label, target=target, weight=1.0, label_source=rule) if label else blank)
            elif label is not None:
                found.append(label)
    return found
