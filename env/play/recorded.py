"""Recorded solutions and sessions as rollouts: their log-probabilities are unknown.

The environment judges the steps of a solution; a session is answered as it was then, and judged by nobody.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import nan

from env.chat.coder import Coder
from env.chat.style import ChatStyle
from env.play.episode import Episode
from env.play.player import Player
from env.play.requests import EpisodeRequest
from env.play.steps import graded_steps, message_steps
from env.protocol import Env
from env.sessions import SessionEnv, is_good, said_in, without_stop
from env.solutions import Solution
from pipeline.engines import Generation
from pipeline.rows import BadRowError
from pipeline.types import Event, FinishReason, Rollout, Step, VerifierStatus

DISAGREES = "verifier_disagrees"
"""Event of a solution whose recorded reward, which counts, is not the environment's."""


def recorded_rollout(solution: Solution, request: EpisodeRequest, player: Player, coder: Coder) -> Rollout:
    """Returns the episode of a solution or session, after the task's bare prompt; the request is `recorded`.

    Its tokens are those that the tokenizer makes of its text. Its steps are the solution's own if it has any,
    else the splitter's. Raises BadRowError if it does not fit into the budget of an episode or, with its
    prompt, into the player's engine, if the environment wants more than a solution's one message, if nobody
    has graded a session, and if the prompt style cannot say a call of it.
    """
    texts = [solution.text]
    if (session := solution.session) is not None:
        if (reward := solution.reward) is None:
            raise BadRowError("no_reward", "nobody has graded this session; a number from 0 to 1 is wanted")
        texts = ["".join(said_in(turn, player.style)) for turn in session.turns]
        played_in = player.make_env
        player = replace(player, make_env=lambda task: SessionEnv(played_in(task), session, reward))
    episode = Episode(request, player, coder)
    try:
        played = episode.start()
        if isinstance(played, Rollout) and played.env_status not in ("ok", "prompt_too_long"):
            return played
        for text in texts:
            tokens = _tokens_of(text, player, coder)
            room = 0 if isinstance(played, Rollout) else played.max_new_tokens
            if isinstance(played, Rollout) or len(tokens) > room:
                raise BadRowError("too_long", f"{len(tokens)} tokens; what is before leaves room for {room}")
            played = episode.advance(Generation(played.request_id, tokens, [0.0] * len(tokens), "stop"))
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
        played = replace(played, reward=solution.reward, events=(*played.events, event))
    if played.reward is not None and solution.reward is not None:
        end: FinishReason = "success" if is_good(solution.reward) else "ended"
        played = replace(played, finish_reason=end)
    unknown = tuple(nan if sampled else 0.0 for sampled in played.loss_mask)
    return replace(played, logprobs=unknown)


def _tokens_of(text: str, player: Player, coder: Coder) -> list[int]:
    """Returns a message as a policy would have sampled it; BadRowError for one that none could have."""
    text = without_stop(text, player.style)
    # Not by the coder, which keeps what it has encoded: there may be many long texts, each of them once.
    tokens = [*player.tokenizer.encode(text, add_special_tokens=False), coder.stop_id]
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
