"""What the actor will not train with: a critic that failed its gate, an environment that keeps failing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from critics.frozen.contract import REWARD
from env.catalog import offer_of
from env.play.shards import said_of_failures
from pipeline.artifacts.commit import MAX_FAILED_SHARE
from pipeline.errors import ArtifactError, ExitCode
from pipeline.types import Rollout
from stages.settings import Actor, Config
from stages.settings.sampling import Chain

if TYPE_CHECKING:
    from critics.frozen.critic import FrozenCritic

MAX_LOGPROB_GAP = {False: 1e-4, True: 0.05}
"""Nats per token between engine and trainer on the same weights, by whether either computes in bf16: above
rounding (fp32 here: 4e-7; bf16: .006 to .035, decision 0004), below a stale engine."""
INSTEAD_OF_WEAK = "stored.objective.on_weak_critic to allow, or stored.objective.kind to likelihood"
"""What the stored phase may change where it refuses a critic."""
MAX_EMPTY_ITERATIONS = 3  # running; then there is nothing left to learn from, or something is broken


def contexts_of(chain: Chain, guided: str = "in_context") -> tuple[str, ...]:
    """Returns the contexts that an actor with such chains trains in, as critics name them."""
    return ("bare", "guided") if chain.has_feedback and guided == "in_context" else ("bare",)


def stamp_of(
    gate: Mapping[str, Any],
    contexts: Sequence[str],
    on_weak_critic: str,
    *,
    instead: str = "actor.credit.on_weak_critic to group_only (alpha 0) or allow",
) -> dict[str, Any]:
    """Returns what a report says of its critic's gate; raises ArtifactError if it is refused.

    `override` let training go on in spite of the reasons; None: nothing speaks against this critic's credit.
    `instead` are the settings to change where it is refused.
    """
    reasons = list(gate["reasons"])
    if set(contexts) - set(gate["contexts"]):
        reasons.append(
            "states after feedback were not judged (set critic_report.guided to true, actor.guided to "
            "stripped, or actor.chain.num_attempts to 1)"
        )
    if reasons and on_weak_critic == "refuse":
        raise ArtifactError(
            f"the critic's gate failed: {'; '.join(reasons)}. Training by this critic is "
            f"refused. Next: make a better critic, or set {instead}",
            code=ExitCode.QUALITY,
        )
    override = on_weak_critic if reasons else None
    return {"verdict": gate["verdict"], "reasons": reasons, "override": override}


def override_words(stamp: Mapping[str, Any], setting: str = "actor.credit.on_weak_critic") -> str:
    """Returns the sentence that training by a weak critic carries; nothing without an override."""
    if stamp["override"] is None:
        return ""
    does = {
        "allow": "trained with its credit all the same",
        "group_only": "trained without its step advantages (alpha 0); its values are still in the baseline",
    }
    return (
        f"WEAK CRITIC (gate: {stamp['verdict']}), {does[stamp['override']]}: {setting} is "
        f"{stamp['override']}. Against it: {'; '.join(stamp['reasons'])}."
    )


def check_critic(
    critic: FrozenCritic,
    config: Config,
    *,
    contexts: Sequence[str],
    tokenizer_digest: str,
    label_policy_digest: str,
) -> None:
    """Raises ArtifactError unless the critic was made for such contexts, policy, sampling and environment."""
    if (told := critic.contract.privileged) != config.critic.privileged:
        raise ArtifactError(
            f"critic {critic.digest[:12]} was fitted with critic.privileged = {told}, this run says "
            f"{config.critic.privileged}. Next: critic.privileged={told} here too, or make critic and "
            "critic_report again with SET=--fresh"
        )
    critic.check_matches(
        temperature=1.0,  # an actor samples from the whole distribution
        top_p=1.0,
        top_k=-1,
        gamma=1.0,  # values are chances of success, whatever credit discounts
        reward=REWARD,
        contexts=contexts,
        max_response_tokens=config.sampling.max_response_tokens,
        splitter=offer_of(config.tasks.environment).splitter,
        families=(config.tasks.environment,),
        tokenizer_digest=tokenizer_digest,
        label_policy_digest=label_policy_digest,
    )


def refuse_failing_environment(rollouts: Sequence[Rollout], iteration: int) -> None:
    """Raises ArtifactError, code FAILED_ITEMS, if too many of an iteration's rollouts could not be graded.

    Also if feedback on too many of those that it was asked for failed: guided attempts would be missing.
    """
    num_asked = sum(rollout.feedback_status != "" for rollout in rollouts)
    failed = Counter(rollout.feedback_status for rollout in rollouts if rollout.feedback_failed)
    if failed.total() > MAX_FAILED_SHARE * num_asked:
        kinds = ", ".join(f"{kind} {number}" for kind, number in failed.items())
        raise ArtifactError(
            f"iteration {iteration}: feedback on {failed.total()} of {num_asked} rollouts failed ({kinds}); "
            f"at most {MAX_FAILED_SHARE:.0%} may fail. Nothing was kept of them. Next: vdapo check-feedback, "
            "then the same command goes on",
            code=ExitCode.FAILED_ITEMS,
        )
    ungraded = sum(rollout.reward is None for rollout in rollouts)
    if ungraded > MAX_FAILED_SHARE * len(rollouts):
        raise ArtifactError(
            f"iteration {iteration}: {ungraded} of {len(rollouts)} rollouts could not be graded; at most "
            f"{MAX_FAILED_SHARE:.0%} may fail{said_of_failures(rollouts)}. Nothing was kept of them. Next: "
            "remove the cause, then the same command goes on",
            code=ExitCode.FAILED_ITEMS,
        )


def refuse_disagreement(gap: float, iteration: int, limit: float) -> None:
    """Raises ArtifactError, code QUALITY, if engine and trainer differ by too many nats per token."""
    if not gap <= limit:
        raise ArtifactError(
            f"iteration {iteration}: engine and trainer differ by {gap:.2g} nats a token on the same "
            f"weights; at most {limit} is rounding. Nothing was trained on these rollouts. Next: check "
            "the hand-off of weights",
            code=ExitCode.QUALITY,
        )


def refuse_nothing_to_learn(actor: Actor, empty_running: int, iteration: int) -> None:
    """Raises ArtifactError, code QUALITY, if too many iterations running had nothing to train on."""
    if actor.stops and empty_running >= MAX_EMPTY_ITERATIONS:
        raise ArtifactError(
            f"iteration {iteration}: {empty_running} iterations running had nothing to train on: all "
            "rollouts of a set succeed, or all fail. Next: other tasks, a better starting policy, or more "
            "draws; actor.stops=false samples on",
            code=ExitCode.QUALITY,
        )
