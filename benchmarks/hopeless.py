"""What it would save to stop hopeless rollouts early, replayed on stored ones: nothing is sampled.

    python -m benchmarks.hopeless                          # seeds 0, 1, 2, on runs that demo_seeds made
    python -m benchmarks.hopeless --runs "demo level3"     # and on `level3-seed<k>`, done up to critic_report

Russian roulette: at its first state s_i, i >= 1, with V(s_i) < tau a rollout is dropped with chance 3/4; one
that goes on counts four times from there. Outcomes and gradients keep their expectation, their variances
grow. By how much follows from stored values, tokens and outcomes: no random number is drawn.

All rollouts are bare and whole, and no critic was fitted to them: the audit's, by the policy that the critic
is of, and the actor's. `third`: the third of them with V(s_0) nearest to 1/2, which an actor would visit with
actor.task_order = near_half. `again`: roulette at every state below tau.

A cost is the tokens that bring a gradient's variance to that of playing all to the end; 1 is no gain. The
gradient is the sum over tokens of A_i times the token's score, for A_i = R - V(s_0), as a group's baseline
has it, or R - V(s_i); scores are taken to be of one size and uncorrelated. What asking the critic in the
middle of a rollout would cost is left out.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks._results import Row, measured
from benchmarks._run import Asked, Benchmark, main
from pipeline.artifacts.artifact import Artifact
from pipeline.statistics import ClusterBootstrap, Interval
from pipeline.tables import rollouts_from, tasks_from

KEEP = 0.25
TAUS = (0.01, 0.02, 0.05, 0.1)
AGAIN_AT = 0.05
BASELINES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "V(s_0)": lambda values: np.full(len(values), values[0]),
    "V(s_i)": lambda values: values,
}
"""Name -> values [T] of a rollout -> its baselines [T]."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A rollout of T steps: V(s_i) [T], sampled tokens of each step [T], outcome, task and its cluster."""

    values: np.ndarray
    tokens: np.ndarray
    reward: float
    task: str
    cluster: str


def chances(values: np.ndarray, tau: float, *, keep: float, again: bool) -> np.ndarray:
    """Returns [T] with what chance each step is played: `keep` once V(s_i) < tau at an i >= 1 up to it.

    `again`: that to the power of how many such states there were.

    Example:
        >>> values = np.array([0.0, 0.3, 0.0, 0.0])
        >>> [chances(values, 0.1, keep=0.5, again=again).tolist() for again in (False, True)]
        [[1.0, 1.0, 0.5, 0.5], [1.0, 1.0, 0.5, 0.25]]
    """
    below = np.cumsum(np.concatenate([[0], values[1:] < tau]))
    return keep ** (below if again else np.minimum(below, 1)).astype(float)


def squares(reward: float, baselines: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Returns [T] E[(1{i} (R' - b_i)/q_i)^2] over the roulette, for steps played with chances q [T].

    1{i}: step i was played; R' = R q_i/q_{T-1} if all were, else 0. So E[1{i} (R' - b_i)/q_i] = R - b_i, and
    the square's expectation is [R^2 q_i/q_{T-1} - 2 R b_i + b_i^2]/q_i.
    """
    return (reward**2 * chance / chance[-1] - 2 * reward * baselines + baselines**2) / chance


def figures_of(
    rollouts: Sequence[Replayed], tau: float, *, keep: float = KEEP, again: bool = False, seed: int = 0
) -> dict[str, Interval]:
    """Returns what roulette at this tau saves and costs, with intervals over clusters.

    `reward variance` is the factor by which that of R' exceeds that of R, E[R'^2] being E[R^2/q_{T-1}].
    """
    boot = ClusterBootstrap([r.cluster for r in rollouts], seed=seed)
    rewards, tokens = np.array([r.reward for r in rollouts]), np.array([r.tokens.sum() for r in rollouts])
    chance = [chances(r.values, tau, keep=keep, again=again) for r in rollouts]
    played = np.array([r.tokens @ q for r, q in zip(rollouts, chance, strict=True)])
    not_dropped = np.array([q[-1] for q in chance])

    def growth(square: np.ndarray, plain: np.ndarray, total: np.ndarray, number: np.ndarray) -> np.ndarray:
        return (square - total**2 / number) / (plain - total**2 / number)

    def cost(square: np.ndarray, plain: np.ndarray, played: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return square / plain * played / tokens

    found = {
        "tokens saved": boot.ratio(tokens - played, tokens),
        "successes stopped": boot.ratio(rewards * (1 - not_dropped), rewards),
        "reward variance": boot.interval(
            [rewards**2 / not_dropped, rewards**2, rewards, np.ones(len(rewards))], growth
        ),
    }
    for name, baselines_of in BASELINES.items():
        by_roulette, to_the_end = (
            np.array(
                [
                    r.tokens @ squares(r.reward, baselines_of(r.values), q)
                    for r, q in zip(rollouts, of, strict=True)
                ]
            )
            for of in (chance, [np.ones(len(r.values)) for r in rollouts])
        )
        found[f"cost, {name}"] = boot.interval([by_roulette, to_the_end, played, tokens], cost)
    return found


def auroc_of_second_state(rollouts: Sequence[Replayed]) -> float:
    """Returns the chance that V(s_1) ranks a success above a failure, of rollouts that come to s_1."""
    came = [r for r in rollouts if len(r.values) > 1]
    return float(roc_auc_score([r.reward >= 0.5 for r in came], [r.values[1] for r in came]))


def pairs_that_differ(rollouts: Sequence[Replayed]) -> float:
    """Returns the chance that two rollouts of a task differ in outcome, mean of 2 p (1 - p) over tasks."""
    of_task: dict[str, list[float]] = defaultdict(list)
    for r in rollouts:
        of_task[r.task].append(r.reward)
    return fmean(2 * variance(rewards) for rewards in of_task.values() if len(rewards) > 1)


def nearest_third(rollouts: Sequence[Replayed]) -> list[Replayed]:
    """Returns the third of the rollouts with V(s_0) nearest to one half."""
    order = sorted(rollouts, key=lambda r: abs(r.values[0] - 0.5))
    return order[: round(len(order) / 3)]


def replayed(run_dir: Path, stage: str) -> list[Replayed]:
    """Returns the bare, whole, graded rollouts of a finished stage that its critic has scored."""
    made = Artifact.open(run_dir, stage)
    clusters = {t.task_id: t.cluster for t in tasks_from(Artifact.open(run_dir, "tasks").table("tasks"))}
    values: dict[str, list[float]] = defaultdict(list)
    for row in made.table("values").to_pylist():  # by rollout, steps in order
        values[row["rollout_id"]].append(row["value"])
    return [
        Replayed(
            np.array(values[r.rollout_id]),
            np.array([sum(r.loss_mask[step.token_start : step.token_end]) for step in r.steps]),
            r.reward,
            r.task_id,
            clusters[r.task_id],
        )
        for r in rollouts_from(made.table("rollouts"), made.table("steps"))
        if r.kind == "whole" and not r.guided and r.reward is not None and r.rollout_id in values
    ]


def measure(asked: Asked) -> Iterator[Row]:
    """Yields the rows of a seed's runs."""
    for name in asked.options.runs.split():
        run_dir = asked.data_dir / f"{name}-seed{asked.seed}"
        stages = {"audit": "critic_report"} | ({"actor": "actor"} if (run_dir / "actor").exists() else {})
        for label, stage in stages.items():
            rollouts = replayed(run_dir, stage)
            for part, own in {
                f"{name} {label}": rollouts,
                f"{name} {label} third": nearest_third(rollouts),
            }.items():
                facts = {
                    "success": fmean(r.reward for r in own),
                    "two of a task differ": pairs_that_differ(own),
                    "AUROC of V(s_1)": auroc_of_second_state(own),
                }
                yield from measured(part, facts, len(own))
                for tau in TAUS:
                    yield from measured(f"{part}, tau {tau}", figures_of(own, tau, seed=asked.seed))
            again = figures_of(rollouts, AGAIN_AT, again=True, seed=asked.seed)
            yield from measured(f"{name} {label}, tau {AGAIN_AT}, again", again)


BENCHMARK = Benchmark("hopeless", __doc__, measure, seeds=(0, 1, 2), options={"runs": "demo"})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
