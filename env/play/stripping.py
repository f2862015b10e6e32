"""Guided rollouts on the bare prompt: what they say without their feedback, which of them may be imitated.

A policy that imitates a rollout without its feedback should learn what it did, not recite what only the
feedback could tell it: a number that it dials without having looked it up teaches to invent numbers.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import nan

from pipeline.types import Rollout

_WORD = re.compile(r"\w+")
MIN_CLUSTERS = 2
MIN_SHARE = 0.02
"""Of the clusters that say a word, for it to be language, not a fact of one of them (start values)."""


def words_of(text: str) -> set[str]:
    """Returns the words of a text; what joins them (`555-0102`, `pin=1234`) hides none.

    Example:
        >>> sorted(words_of("Call 555-0102; PIN=1234, last_4_cc."))
        ['0102', '1234', '555', 'call', 'last_4_cc', 'pin']
    """
    return set(_WORD.findall(text.casefold()))


def shared_words(rollouts: Iterable[Rollout], clusters: Mapping[str, str]) -> set[str]:
    """Returns the words that the policy says in several clusters, so that they are facts of none.

    Its commands and the names of fields are such words; the numbers of one company are not. `clusters` are
    those of tasks by id.
    """
    said: dict[str, set[str]] = defaultdict(set)
    for rollout in rollouts:
        for text in rollout.message_texts:
            for word in words_of(text):
                said[word].add(clusters[rollout.task_id])
    number = len(set().union(*said.values()))
    return {word for word, of in said.items() if len(of) >= max(MIN_CLUSTERS, MIN_SHARE * number)}


def told_words(prompt: str, rollout: Rollout, shared: set[str]) -> set[str]:
    """Returns the facts that a guided rollout says and that only its feedback can have told it.

    They stand in the feedback and are no shared words; neither `prompt`, the bare one as text, nor a reply
    before them held them. What the policy said itself is no source. The messages before a continuation count
    as well, since its states are made of them.
    """
    told = words_of(rollout.feedback_in_context) - shared - words_of(prompt)
    found = set[str]()
    for message in rollout.messages:
        words = words_of(message.get("content") or "")
        if message["role"] == "assistant":
            found |= words & told
        else:
            told -= words  # from here on a reply holds them
    return found


def stripped(rollout: Rollout, guided_prompt: Sequence[int], bare_prompt: Sequence[int]) -> Rollout:
    """Returns a guided rollout as if its episode had begun with the bare prompt.

    `guided_prompt` is the one it began with: its own, or that of the rollout that it continues. What was
    sampled stays as it is; its log-probabilities are of another prompt, so they are NaN.
    """
    return replace(
        rollout,
        guided=False,
        feedback_in_context="",
        prompt_token_ids=(*bare_prompt, *rollout.prompt_token_ids[len(guided_prompt) :]),
        logprobs=tuple(nan if sampled else 0.0 for sampled in rollout.loss_mask),
    )
