"""Recorded solutions as rollouts: the environment judges their steps; their log-probabilities are unknown."""

from collections.abc import Sequence
from dataclasses import replace
from math import nan

from env.chat.style import ChatStyle
from env.play.coder import Coder
from env.play.episode import Episode
from env.play.player import Player
from env.play.requests import EpisodeRequest
from env.play.steps import graded_steps, message_steps
from env.protocol import Env
from env.solutions import Solution
from pipeline.engines import Generation
from pipeline.rows import BadRowError
from pipeline.types import Event, FinishReason, Rollout, Step, VerifierStatus

DISAGREES = "verifier_disagrees"
"""Event of a solution whose recorded reward, which counts, is not the environment's."""


def recorded_rollout(solution: Solution, request: EpisodeRequest, player: Player, coder: Coder) -> Rollout:
    """Returns the episode of a solution, after the task's bare prompt; `request` is of kind `recorded`.

    Its tokens are those that the tokenizer makes of its text. Its steps are the solution's own if it has any,
    else the splitter's. Raises BadRowError if it does not fit into the budget of an episode or, with its
    prompt, into the player's engine, and if the environment wants more than one message.
    """
    episode = Episode(request, player, coder)
    try:
        asked = episode.start()
        if isinstance(asked, Rollout) and asked.env_status not in ("ok", "prompt_too_long"):
            return asked
        tokens = _tokens_of(solution.text, player, coder)
        room = 0 if isinstance(asked, Rollout) else asked.max_new_tokens
        if isinstance(asked, Rollout) or len(tokens) > room:
            raise BadRowError("too_long", f"{len(tokens)} tokens; its prompt leaves room for {room}")
        said = Generation(asked.request_id, tokens, [0.0] * len(tokens), "stop")
        played = episode.advance(said)
        if not isinstance(played, Rollout):
            raise BadRowError("goes_on", "the environment waits for more messages; allowed: one")
        assert episode.env is not None  # an episode that was played has one
        if played.reward is not None and solution.borders is not None:
            steps = _own_steps(solution, solution.borders, tokens, coder, episode.env)
            played = replace(played, steps=steps)
    finally:
        episode.close()
    if played.reward is not None and solution.reward not in (None, played.reward):
        event = Event(DISAGREES, 0, detail=f"the verifier's reward is {played.reward:g}")
        end: FinishReason = "success" if solution.reward == 1 else "ended"
        played = replace(played, reward=solution.reward, finish_reason=end, events=(*played.events, event))
    unknown = tuple(nan if sampled else 0.0 for sampled in played.loss_mask)
    return replace(played, logprobs=unknown)


def _tokens_of(text: str, player: Player, coder: Coder) -> list[int]:
    """Returns a message as a policy would have sampled it; BadRowError for one that none could have."""
    text = text.removesuffix(player.style.stop_token)
    # Not by the coder, which keeps what it has encoded: there may be many long texts, each of them once.
    tokens = [*player.tokenizer.encode(text, add_special_tokens=False), coder.stop_id]
    if coder.stop_id in tokens[:-1]:
        raise BadRowError("stop_token", f"the token {player.style.stop_token} is in it, which ends a message")
    if coder.message_text(tokens) != text:
        raise BadRowError("other_text", "the tokenizer cannot say it: its tokens are of another text")
    return tokens


def _own_steps(
    solution: Solution, borders: Sequence[int], tokens: Sequence[int], coder: Coder, env: Env
) -> tuple[Step, ...]:
    found = message_steps(
        solution.text,
        borders,
        coder.char_starts(tokens),
        message_index=0,
        first_index=0,
        response_start=0,
        begun=0,
    )
    if len(found) <= len(borders):
        raise BadRowError("bad_steps", "a step begins inside a token, and ends there")
    return graded_steps(found, env.verdict().steps)


def judged_steps(solution: Solution, env: Env, style: ChatStyle) -> list[VerifierStatus]:
    """Returns what the environment's verifier says of a solution's own steps; no policy is needed.

    Raises BadRowError if it cannot say anything, for a reason that is not the solution's.
    """
    env.reset(solution.task, 0)
    if error := env.step(style.parse(solution.text)).infra_error or env.verdict().infra_error:
        raise BadRowError("infra_error", error)
    starts = (0, *(solution.borders or ()))
    steps = [(start, Step(i, 0, 0, 0, "")) for i, start in enumerate(starts)]
    return [step.verifier_status for step in graded_steps(steps, env.verdict().steps)]
