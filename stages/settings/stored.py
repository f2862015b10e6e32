"""The actor's stored phase: training on rollouts that are there already, before any fresh one."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipeline.settings import Section, setting


class _Objective(Section):
    """What every objective says of itself."""

    strips: ClassVar[bool] = False  # whether guided successes count, on the bare prompt
    estimates: ClassVar[bool] = False  # whether pi_0 stands for a policy that was recorded, in ratios

    @property
    def judged_by_loss(self) -> bool:
        """Whether the loss on held-out rollouts says when to stop, not how probable held-out successes are.

        Objectives of ratios learn from failures too: what they gain need not make successes more probable.
        """
        return not self.strips


class Nothing(_Objective):
    """No stored phase: the actor starts from sft's policy."""

    kind: Literal["none"] = "none"


class Likelihood(_Objective):
    """Successes are imitated, guided ones on the bare prompt."""

    strips: ClassVar[bool] = True
    kind: Literal["likelihood"] = "likelihood"


class OfCritic(_Objective):
    """What those have that ask the frozen critic."""

    on_weak_critic: Literal["refuse", "allow"] = setting(
        "refuse", "if the gate failed: refuse, or go on all the same", advanced=True
    )


def _temperature() -> Any:
    return setting(0.2, "T of pi_0 exp(A/T), which is aimed at: the lower, the further from pi_0", gt=0)


def _lam() -> Any:
    return setting(0.95, "trace decay per step of the critic's advantages", ge=0, le=1, advanced=True)


class AdvantageWeighted(OfCritic):
    """Steps are imitated with weight exp(A/T) of the critic's advantages; guided successes count too."""

    strips: ClassVar[bool] = True
    kind: Literal["advantage_weighted"] = "advantage_weighted"
    temperature: float = _temperature()
    lam: float = _lam()


class DirectAdvantage(OfCritic):
    """Log-ratios of sibling steps of `labels` are regressed on their advantages: arXiv:2412.18279."""

    kind: Literal["direct_advantage"] = "direct_advantage"
    temperature: float = _temperature()


class Clipped(OfCritic):
    """Clipped policy loss with the critic's advantages, against the stored log-probabilities."""

    kind: Literal["clipped"] = "clipped"
    lam: float = _lam()


class VDapo(OfCritic):
    """V-DAPO's credit, in groups of at least four similar tasks or with V(s_0) as baseline; clipped loss."""

    estimates: ClassVar[bool] = True
    kind: Literal["v_dapo"] = "v_dapo"
    lam: float = _lam()


Objective = Annotated[
    Nothing | Likelihood | AdvantageWeighted | DirectAdvantage | Clipped | VDapo, Field(discriminator="kind")
]


class Stored(Section):
    """The stored phase."""

    objective: Objective = Nothing()
    learning_rate: float = setting(1e-5, "constant", gt=0)
    batch_rows: int = setting(256, "rollouts, or sibling steps, per update", ge=1)
    max_epochs: int = setting(16, "at most; it ends before, once held-out successes get less probable", ge=1)
