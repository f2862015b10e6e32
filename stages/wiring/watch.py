"""Watches the frozen critic while the actor trains, and reacts as configured.

What is decided in an iteration counts from the next one on: no baseline then has seen its own outcome.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from critics.audit.data import AuditData
from critics.drift.checks import (
    MIN_SIGN_AGREEMENT,
    Correction,
    FreeCheck,
    fit_correction,
    free_check,
    is_measured,
    level_is_off,
    paid_check,
    steps_are_off,
)
from critics.labels.samples import rewards_of
from env.catalog import ENVIRONMENTS
from env.play.continuations import Continuations
from pipeline.credit import VDapo
from pipeline.ids import seed_of
from pipeline.statistics import Interval, interval_dict, interval_words
from pipeline.types import Rollout, StateRef, Task
from stages.wiring.build import load_critic
from stages.wiring.refresh import gate_of
from stages.wiring.refusals import check_made_for, contexts_of, gate_allows
from stages.wiring.safety_stops import KL_UPDATES, recent_kl

if TYPE_CHECKING:
    from critics.frozen.contract import FrozenCritic
    from env.play.player import Player
    from pipeline.artifacts.runner import Start
    from pipeline.credit import Credit
    from stages.settings import Actor, Drift

NUM_RESAMPLES = 500
REFIT_ITERATIONS = 3
"""Level and slope are refitted to this many iterations: one alone was found off for being extreme, in part
by chance (start value)."""


class Watch:
    """A critic under watch.

    Attributes:
        critic: as it was frozen, or as it was refreshed.
        state: everything that later iterations depend on; JSON, kept in checkpoints.
    """

    def __init__(self, start: Start, critic: FrozenCritic, tasks: Sequence[Task]) -> None:
        self._start = start
        self._actor: Actor = start.config.actor
        self._settings: Drift = start.config.actor.credit.drift
        self._tasks = {task.task_id: task for task in tasks}
        self._clusters = {task.task_id: task.cluster for task in tasks}
        self.critic = critic
        # Without a KL term no update measures it, and the start's 0 would pass for the distance of all.
        has_kl = self._actor.credit.kl > 0
        self.state: dict[str, Any] = {
            "slope": 1.0,
            "shift": 0.0,
            "recent": [],  # of the last iterations: [values as frozen, rewards] of bare rollouts
            "steps_off": False,
            "next_check": self._settings.paid_every,
            "refreshes": 0,
            "wants_refresh": False,
            "refreshed": None,
            "refresh_runs": [],
            "refused_runs": [],
            "adv_rmse": None,
            "kls": [],  # of the last updates, measured as each began
            "kl": 0.0 if has_kl else None,  # `recent_kl` of them; None: not measured
            "sampled_kl": 0.0 if has_kl else None,  # the same when the iteration was sampled
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint's state, with the refreshed critic if there was one."""
        self.state = self.state | dict(state)
        if self.state["refreshed"]:
            folder = self._start.run_dir / self.state["refreshed"]
            self.critic = load_critic(self._start.config, folder / "critic" / "critic")

    def values(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """Returns the corrected values [T] of each rollout's states."""
        correction = Correction(self.state["slope"], self.state["shift"])
        return [correction(v) for v in self.critic.values(rollouts)]

    @property
    def whose_values(self) -> str:
        """What the values table calls the estimates: the critic's digest, and the correction if one is on."""
        slope, shift = self.state["slope"], self.state["shift"]
        corrected = Correction(slope, shift) != Correction()
        return self.critic.digest + (f" slope={slope!r} shift={shift!r}" if corrected else "")

    def credit(self, credit: Credit) -> Credit:
        """Returns the credit mode with the weight that the checks so far allow."""
        if not isinstance(credit, VDapo) or not credit.alpha:
            return credit
        if self.state["adv_rmse"] is not None:
            credit = replace(credit, adv_rmse=self.state["adv_rmse"])
        if self.state["steps_off"]:
            return replace(credit, alpha=0.0)
        return credit

    # -- what is sampled for it ------------------------------------------------------------------------

    def is_due(self, num_updates: int, credit: Credit) -> bool:
        """Returns whether a paid check is due before the next update.

        A critic without weight is not checked, unless one that is found off is to be refreshed again.
        """
        weighs = isinstance(credit, VDapo) and credit.alpha > 0
        weighs |= self.state["steps_off"] and self.may_refresh
        return bool(self._settings.paid_every and weighs and num_updates >= self.state["next_check"])

    def play(self, player: Player, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Returns fresh continuations by the present actor, of the states of some bare rollouts.

        The rollouts are chosen by their seeds, whole, until there are enough states.
        """
        usable = [r for r in rollouts if not r.guided and r.reward is not None and r.steps]
        ordered = sorted(usable, key=lambda r: seed_of("drift", r.seed))
        chosen: list[Rollout] = []
        while ordered and sum(len(r.steps) for r in chosen) < self._settings.states:
            chosen.append(ordered.pop(0))
        requests = Continuations(self._start.stage_key, self._start.seed, "drift").of_all(
            chosen, self._tasks, self._settings.num_continuations
        )
        return player.play(requests, on_finish=lambda _: self._start.stop_if_asked())

    # -- what is found and done ------------------------------------------------------------------------

    def moved(self, metrics: Mapping[str, float]) -> None:
        """Notes how far from its start the actor was in an update, as its forward passes saw it."""
        if "ref_kl" in metrics:
            kls = [*self.state["kls"], float(metrics["ref_kl"])][-KL_UPDATES:]
            self.state = self.state | {"kls": kls, "kl": recent_kl(kls)}

    def after(
        self,
        rollouts: Sequence[Rollout],
        values: Mapping[str, np.ndarray],
        checked: Sequence[Rollout],
        num_updates: int,
        credit: Credit,
    ) -> dict[str, Any]:
        """Returns an iteration's checks as metrics, and decides what holds from the next one on.

        Args:
            rollouts: of the iteration.
            values: rollout_id -> [T] those that its credit was given with.
            checked: what `play` sampled in it; nothing if no paid check was due.
            num_updates: taken before the iteration's updates.
            credit: that the iteration's updates were made with; its alpha shows what the checks did.
        """
        paid = self.check([*rollouts, *checked], num_updates) if checked else {}
        metrics = self.look(rollouts, values) | paid
        if self.state["sampled_kl"] is not None:
            metrics["critic_drift/kl"] = self.state["sampled_kl"]
        if isinstance(credit, VDapo):
            metrics["critic_drift/alpha"] = credit.alpha
        self.state = self.state | {"sampled_kl": self.state["kl"]}
        return metrics

    def look(self, rollouts: Sequence[Rollout], values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the free check of an iteration's rollouts, and corrects level and slope if they are off.

        They are refitted to the last `REFIT_ITERATIONS`: what an iteration that was found off says alone is
        too much, since by chance too it is the extreme one that is found.

        Args:
            rollouts: of the iteration.
            values: rollout_id -> [T] those that its credit was given with, corrected as it was then.
        """
        bare = [
            r for r in rollouts if r.kind == "whole" and not r.guided and r.reward is not None and r.steps
        ]
        if not bare:
            return {}
        rewards = [float(r.reward or 0.0) for r in bare]
        check = free_check(
            [values[r.rollout_id] for r in bare],
            rewards,
            [self._clusters[r.task_id] for r in bare],
            seed=self._start.seed,
        )
        in_use = {"correction_slope": self.state["slope"], "correction_shift": self.state["shift"]}
        off = level_is_off(check)
        if self._settings.react:
            self._remember([values[r.rollout_id] for r in bare], rewards)
            if off:
                self._refit(check)
        found = {"rollouts": check.num_rollouts, "skill": check.skill, "auroc": check.auroc, "level_off": off}
        found |= in_use
        known = {f"critic_drift/{name}": float(x) for name, x in found.items() if math.isfinite(x)}
        return known | _metrics({"bias": check.bias, "slope": check.slope})

    def _remember(self, values: Sequence[np.ndarray], rewards: list[float]) -> None:
        """Keeps an iteration's values, as they were frozen, for refits."""
        undo = Correction(self.state["slope"], self.state["shift"]).undo
        recent = [*self.state["recent"], [[undo(v).tolist() for v in values], rewards]]
        self.state = self.state | {"recent": recent[-REFIT_ITERATIONS:]}

    def _refit(self, check: FreeCheck) -> None:
        """Corrects level and slope from the next iteration on, as the remembered ones say."""
        recent = self.state["recent"]
        fitted = fit_correction(
            [np.array(v) for of, _ in recent for v in of], [r for _, of in recent for r in of]
        )
        self.state = self.state | {"slope": fitted.slope, "shift": fitted.shift}
        self._start.say(
            f"drift: bias {check.bias.value:+.3f}, slope {check.slope.value:.2f}; the critic is recalibrated "
            f"from the next iteration on (slope {fitted.slope:.2f}, shift {fitted.shift:+.2f}, fitted to the "
            f"last {len(recent)})"
        )

    def check(self, rollouts: Sequence[Rollout], num_updates: int) -> dict[str, Any]:
        """Returns the paid check of what `play` sampled, and takes the step weight away if steps are off."""
        audit = self._audit(rollouts)
        found = paid_check(audit, num_resamples=NUM_RESAMPLES, seed=self._start.seed)
        metrics = {"critic_drift/states": float(len(audit))} | _metrics(found)
        self.state = self.state | {"next_check": num_updates + self._settings.paid_every}
        if not is_measured(found):
            self._start.say(
                f"drift: after {num_updates} updates {len(audit)} states could be checked, which says "
                "nothing of steps: no two in a row, one cluster, or no step that clearly changed the chance; "
                "the next check is due after the usual number of updates"
            )
            return metrics
        off = steps_are_off(found)
        self.state = self.state | {
            "steps_off": self.state["steps_off"] or (off and self._settings.react),
            "wants_refresh": off and self.may_refresh,
        }
        if off:
            self._start.say(
                f"drift: after {num_updates} updates Cov(A, Ahat) is {interval_words(found['cov_a'], 4)} "
                f"(off at or below 0), signs agree in {interval_words(found['sign_agreement'], 2)} (off "
                f"wholly below {MIN_SIGN_AGREEMENT:g}), rho_A is "
                f"{interval_words(found['rho_a'], 2)}: the critic no longer knows this actor's steps"
                + ("; its step weight is 0 from the next iteration on" if self.state["steps_off"] else "")
            )
        return metrics | {"critic_drift/steps_off": float(off)}

    @property
    def wants_refresh(self) -> bool:
        """Whether the last paid check asks for a critic of the present actor."""
        return bool(self.state["wants_refresh"])

    def refreshed(self, run_dir: Path, policy_digest: str, tokenizer_digest: str) -> None:
        """Takes over a critic that was made for the present actor; alpha returns if its gate passed.

        Args:
            run_dir: the refreshing run; one that ended without a verdict leaves the critic as it is.
            policy_digest: of the actor that it was made for.
            tokenizer_digest: of the actor.
        """
        gate, name = gate_of(run_dir), str(run_dir.relative_to(self._start.run_dir.resolve()))
        self.state = self.state | {
            "steps_off": True,
            "refreshes": self.state["refreshes"] + 1,
            "wants_refresh": False,
        }
        if gate is None:
            self.state = self.state | {"refused_runs": [*self.state["refused_runs"], name]}
            self._start.say(
                f"drift: no critic could be made of what this actor plays ({name}, whose message is above); "
                "the step weight is 0 from now on"
            )
            return
        critic = load_critic(self._start.config, run_dir / "critic" / "critic")
        check_made_for(
            critic,
            contexts=contexts_of(self._actor.chain),
            max_response_tokens=self._start.config.sampling.max_response_tokens,
            family=self._start.config.tasks.environment,
            splitter=ENVIRONMENTS[self._start.config.tasks.environment].splitter,
            tokenizer_digest=tokenizer_digest,
            label_policy_digest=policy_digest,
        )
        self.critic = critic
        self.state = self.state | {
            "slope": 1.0,
            "shift": 0.0,
            "recent": [],
            "steps_off": not gate_allows(gate, contexts_of(self._actor.chain), "group_only"),
            "refreshed": name,
            "refresh_runs": [*self.state["refresh_runs"], name],
            "adv_rmse": gate["adv_rmse"]["value"] or 0.0,
        }
        self._start.say(f"drift: the critic was refreshed; its gate says {gate['verdict']}")

    @property
    def may_refresh(self) -> bool:
        """Whether the settings allow another refresh."""
        most = {"never": 0, "once": 1, "on_drift": float("inf")}[self._settings.refresh]
        return bool(self.state["refreshes"] < most)

    def _audit(self, rollouts: Sequence[Rollout]) -> AuditData:
        parents = {r.rollout_id: r for r in rollouts if r.kind == "whole"}
        counts = rewards_of(rollouts, parents)
        states = {state.rollout_id for state in counts}
        audited = [parent for name, parent in parents.items() if name in states]
        rows = [
            (
                r.rollout_id,
                step.step_index,
                r.task_id,
                self._clusters[r.task_id],
                float(v),
                len(got),
                sum(got),
            )
            for r, values in zip(audited, self.values(audited), strict=True)
            for step, v in zip(r.steps, values, strict=True)
            if len(got := counts.get(StateRef(r.rollout_id, step.step_index, r.context), [])) >= 2
        ]
        ids, steps, tasks, clusters, p, K, k = (
            map(np.array, zip(*rows, strict=True)) if rows else (np.zeros(0),) * 7
        )
        N = len(rows)
        return AuditData(
            rollout_id=ids,
            step_index=steps,
            context=np.full(N, "bare"),
            task_id=tasks,
            cluster=clusters,
            level=np.zeros(N, int),
            split=np.full(N, ""),
            position=np.zeros(N),
            p=p,
            k=np.rint(k).astype(int),
            K=K,
            v_star=np.full(N, np.nan),
        )


def _metrics(found: Mapping[str, Interval]) -> dict[str, float]:
    """Returns intervals as metrics: value, and `_low`, `_high` where known."""
    return {
        f"critic_drift/{name}" + ("" if part == "value" else f"_{part}"): number
        for name, interval in found.items()
        for part, number in interval_dict(interval).items()
        if number is not None
    }
