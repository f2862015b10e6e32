"""One iteration of the actor: sample, score, commit, update."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from critics.fit.online import OnlineCritic
from env.play.team import Team
from pipeline.artifacts.commit import Shards
from pipeline.credit import Credit
from pipeline.credit.history import visited, worth_a_visit
from pipeline.credit.updates import BaselineSets, Update
from pipeline.processes.failpoints import failpoint
from pipeline.training.losses import policy_loss
from pipeline.training.policy_update import Logprobs, more_logprobs, update_rows
from pipeline.types import Rollout, Task
from stages.settings import Actor
from stages.wiring.agreement import Agreement
from stages.wiring.committed import Committed, iteration_tables
from stages.wiring.learner import ActorState, Learner
from stages.wiring.oracle import Oracle
from stages.wiring.refusals import refuse_nothing_to_learn
from stages.wiring.sampling import Sampling, first_try
from stages.wiring.watch import Watch, chosen_for_check


@dataclass(frozen=True, slots=True)
class Iterations:
    """Takes an actor from one iteration, which is one shard, to the next."""

    learner: Learner
    sampling: Sampling
    watch: Watch | None  # None without a critic
    credit: Credit  # as configured
    settings: Actor
    shards: Shards
    log: Callable[[Mapping[str, Any]], None]
    show: Callable[[int, Sequence[Rollout]], None]  # takes the number of updates too
    half_precision: bool  # of engine or trainer; old log-probabilities are then the trainer's

    def next(self, state: ActorState) -> ActorState:
        """Returns the state after one more iteration; a stop while it samples leaves the state as it was."""
        number, trainer, watch = state.iterations, self.learner.trainer, self.watch
        credit = self.credit if watch is None else watch.credit(self.credit)
        asked, began = self._asked(number), trainer.num_updates
        rule, seed = self.settings.skip_rule, self.sampling.seed
        tasks = worth_a_visit(self.sampling.tasks, state.history, rule=rule, iteration=number, seed=seed)
        looks = [] if number % self.settings.evaluate_every else self.sampling.look_at_val(asked.team, number)
        batch, checked, passes, logprobs, gap = self._sampled(asked, credit, tasks, looks)
        clock = time.monotonic() - self.shards.seconds_of(number)  # sampled now or by an earlier start
        found = {"iteration": number, "engine/logprob_gap": gap, **batch.metrics(checked), **first_try(looks)}
        before = state.credit
        for updates in passes:
            state = replace(state, credit=before)  # no later pass may scale an advantage by itself
            for update in updates:
                state = self._updated(state, update, credit, logprobs)
        if watch is not None:
            found |= watch.after(batch.rollouts, batch.values or {}, checked, began, credit)
            state = replace(state, drift=watch.state)
        if rule != "none":
            found["tasks/skipped"] = float(len(self.sampling.tasks) - len(tasks))
            state = replace(state, history=visited(state.history, batch.rollouts, number))
        found["seconds"] = time.monotonic() - clock
        self.log(found | self.learner.pace.lap(int(found["rollouts/sampled_tokens"])))
        return replace(state, iterations=number + 1)

    def last_look(self, number: int) -> list[Rollout]:
        """Returns a look at val by the present weights, which are those after so many iterations."""
        asked = self._asked(number)
        looks = self.sampling.look_at_val(asked.team, number)
        asked.on(looks)
        return looks

    def _asked(self, number: int) -> Agreement:
        return Agreement.asked(self.learner, self.sampling.val, number, half_precision=self.half_precision)

    def _sampled(
        self, asked: Agreement, credit: Credit, tasks: Sequence[Task], looks: Sequence[Rollout]
    ) -> tuple[BaselineSets, list[Rollout], list[list[Update]], Mapping[str, Logprobs], float]:
        """Returns rollouts, continuations, each pass's updates, log-probabilities, all committed; the gap."""
        watch, shards, settings, trainer = self.watch, self.shards, self.settings, self.learner.trainer
        number, team, num_updates = asked.iteration, asked.team, trainer.num_updates
        judge = self._judge(team, credit, number)
        whose_values, values_of = (judge.whose_values, judge.values) if judge is not None else ("", None)
        digest, reference = team.recipe.policy_digest, self.learner.reference
        earlier = Committed.of(shards, number, policy_digest=digest, whose_values=whose_values)
        clock, checked = time.monotonic(), list[Rollout]()  # looks are free
        if earlier is not None:
            batch = BaselineSets.of(earlier.rollouts, earlier.values, credit, self.sampling.strip)
            checked = earlier.checked
        else:
            wanted = settings.tasks_per_update * settings.updates_per_iteration
            batch = self.sampling.collect(
                team, credit, values_of, number, tasks=tasks, wanted=wanted, max_refills=settings.max_refills
            )
            if watch is not None and watch.is_due(num_updates, credit):
                chosen = chosen_for_check(batch.rollouts, watch.rules.states)
                checked = self.sampling.continue_all(team, chosen, number, each=watch.rules.num_continuations)
            elif isinstance(judge, Oracle):
                checked = judge.played
        passes = batch.passes(
            settings.passes,
            settings.updates_per_iteration,
            max_uniform_share=credit.max_uniform_share,
            seed=self.sampling.seed,
        )
        updates, half = [update for of_pass in passes for update in of_pass], self.half_precision
        logprobs = (
            earlier.logprobs if earlier else more_logprobs(updates, trainer, reference, half_precision=half)
        )
        gap = asked.on(batch.rollouts)  # after the reference's turn, so that the trainer keeps its own
        if earlier is None:
            tables = iteration_tables(
                batch,
                checked,
                looks,
                updates,
                logprobs,
                whose_values=whose_values,
                num_updates=num_updates,
                aggregation=credit.loss.aggregation,
            )
            again, seconds = shards.is_committed(number), time.monotonic() - clock
            shards.commit(number, tables, done=1, supersede=again, seconds=round(seconds, 3))
            self.show(num_updates, batch.rollouts)
        return batch, checked, passes, logprobs, gap

    def _judge(self, team: Team, credit: Credit, number: int) -> Watch | OnlineCritic | Oracle | None:
        """Returns who says what the states of an iteration are worth; None if nobody is asked."""
        told = self.settings.credit
        if self.watch is None and credit.needs_values and told.mode == "v_dapo":
            return Oracle(self.sampling, team, number, told.drift.num_continuations)
        return self.watch or self.learner.online

    def _updated(
        self, state: ActorState, update: Update, credit: Credit, logprobs: Mapping[str, Logprobs]
    ) -> ActorState:
        """Returns the state after an optimizer step."""
        if not update.rollouts:
            refuse_nothing_to_learn(self.settings, state.empty_running + 1, state.iterations)
            return replace(state, empty_running=state.empty_running + 1)
        failpoint("actor.update.before")
        rows, metrics, after = update_rows(update, credit=credit, state=state.credit, logprobs=logprobs)
        metrics |= self.learner.trainer.update(rows, policy_loss(credit.loss))
        if self.learner.online is not None:
            metrics |= self.learner.online.update(update.rollouts)
        failpoint("actor.update.after")
        self.log({"iteration": state.iterations, "update": self.learner.trainer.num_updates, **metrics})
        return replace(state, credit=after, empty_running=0)
