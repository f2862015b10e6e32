"""The step-level critic: labels, fit, audit. The gate's thresholds are in critics/report/gate.py."""

from typing import Literal

from pipeline.settings import Section, setting

EVIDENCE = "docs/results.md, critics: three seeds of a model of 1.1M parameters, nothing larger yet"


class Labels(Section):
    """What is known of step values."""

    target: Literal["outcome_dense", "soft", "monte_carlo", "td", "td_lambda", "rule_decay"] = setting(
        "outcome_dense",
        "what the critic is fitted to: R at every state (outcome_dense) or at fixed steps (monte_carlo), "
        "counts of continuations (soft), the critic's own values (td, td_lambda), located errors "
        "(rule_decay)",
        source=f"{EVIDENCE}: within noise of soft at a tenth of its label tokens",
    )
    num_continuations: int = setting(
        0,
        "n fresh continuations of a chosen state, for soft targets, validation and more states to fit; 0 "
        "labels by outcomes alone",
        source=f"{EVIDENCE}: none are needed for outcome_dense",
        ge=0,
    )
    max_states: int | None = setting(None, "cap on states that get continuations; null is none", ge=1)
    guided_share: float = setting(0.3, "share of those states that lie in a guided context", ge=0, le=1)
    kappa: float = setting(
        0.0,
        "soft: pseudo-counts given to the recovery model",
        source="docs/decisions/0023: beside fitted continuations they only flatten, on the same tiny model",
        ge=0,
        advanced=True,
    )
    granularity: Literal["binary", "step", "detailed"] = setting(
        "detailed", "what pseudo-counts know of located errors: nothing, that one was, which", advanced=True
    )


class Critic(Section):
    """The frozen step-level critic."""

    trunk: str = setting(
        "policy",
        "'policy' starts from the sft policy; else a model folder, told apart by its path: after a change of "
        "what is in it, make critic SET=--fresh",
    )
    privileged: Literal["none", "features", "words"] = setting(
        "none",
        "what the critic is told of the verifier's verdicts on earlier steps, which the actor never sees: "
        "nothing, how many of which kind when values are calibrated (features), or each after its step in "
        "the rows that it reads (words)",
        source="2509.26000: any privileged state leaves the gradient unbiased; docs/decisions/0052",
    )
    fit_share: float = setting(0.72, "clusters to fit on; labels are made for them", gt=0, lt=1)
    validate_share: float = setting(
        0.08, "clusters that decide convergence; they and the rest calibrate", gt=0, lt=1
    )
    fit_continuations: bool = setting(
        True,
        "with labels.target soft or outcome_dense, fit on the states that continuations came to as well, by "
        "how they ended: several times the states, nothing more to sample",
        source=f"{EVIDENCE}: EV within .43 against .38 without",
        advanced=True,
    )
    head_updates: int = setting(50, "phase 1: head only", ge=0, advanced=True)
    head_learning_rate: float = setting(1e-4, "phase 1", gt=0)
    learning_rate: float = setting(1e-5, "phase 2: all weights, cosine", gt=0)
    max_epochs: float = setting(3, "phase 2 at most", gt=0)
    batch_states: int = setting(512, "states per update", ge=1)
    evaluations_per_epoch: int = setting(4, "looks at the validation clusters", ge=1, advanced=True)


class CriticReport(Section):
    """The audit on held-out tasks, and the gate."""

    tasks_per_split: int = setting(100, "audited tasks of each held-out split of unseen clusters", ge=1)
    draws: int = setting(4, "bare rollouts of each task: the per-task rate needs others", ge=2, advanced=True)
    num_continuations: int = setting(32, "K fresh continuations of each state", ge=2)
    guided: bool = setting(
        True, "audit and judge states after feedback too; an actor trained on them needs it"
    )
    fit_tasks: int = setting(
        50,
        "of the critic's training tasks, audited as well to measure memorisation; 0 is none",
        ge=0,
        advanced=True,
    )
    sibling_sets: int = setting(
        100,
        "tasks on which several next steps of one state are compared; 0 measures none",
        ge=0,
        advanced=True,
    )
    probe_rollouts: int = setting(
        400, "audited rollouts that are probed; 0 measures none", ge=0, advanced=True
    )

    def rollouts_per_task(self, steps: int) -> int:
        """Returns the rollouts and continuations of an audited task whose rollouts have so many steps."""
        return (1 + self.guided) * (self.draws + steps * self.num_continuations)
