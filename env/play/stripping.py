"""Guided rollouts on the bare prompt: what they say without their feedback, which of them may be imitated.

A policy that imitates a rollout without its feedback should learn what it did, not recite what only the
feedback could tell it: a number that it dials without having looked it up teaches to invent numbers.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import nan

from pipeline.types import Rollout

_WORD = re.compile(r"\w+")
Prompt = Sequence[int]
"""Token ids."""
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


class Vocabulary:
    """What the policy says in several clusters, as rollouts are heard: its commands and names of fields.

    The numbers of one company are no such words.
    """

    def __init__(self, clusters: Mapping[str, str]) -> None:
        """Has heard nothing; `clusters` are those of tasks by id."""
        self._clusters = clusters
        self._said: dict[str, set[str]] = defaultdict(set)  # word -> clusters

    def hear(self, rollouts: Iterable[Rollout]) -> None:
        """Takes in what some rollouts say; none counts twice."""
        for rollout in rollouts:
            for text in rollout.message_texts:
                for word in words_of(text):
                    self._said[word].add(self._clusters[rollout.task_id])

    @property
    def shared(self) -> set[str]:
        """The words that are facts of no cluster."""
        number = len(set().union(*self._said.values()))
        return {word for word, of in self._said.items() if len(of) >= max(MIN_CLUSTERS, MIN_SHARE * number)}


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


def stripped(rollout: Rollout, guided_prompt: Prompt, bare_prompt: Prompt) -> Rollout:
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


def untold(
    guided: Iterable[tuple[Rollout, Prompt, Prompt]], shared: set[str], decode: Callable[[list[int]], str]
) -> tuple[list[Rollout], Counter[str]]:
    """Returns guided rollouts stripped as `stripped` has it, without those that say what only feedback told.

    The counter says of each such word how many rollouts say it.
    """
    kept, told = list[Rollout](), Counter[str]()
    for rollout, guided_prompt, bare_prompt in guided:
        if words := told_words(decode(list(bare_prompt)), rollout, shared):
            told.update(words)
        else:
            kept.append(stripped(rollout, guided_prompt, bare_prompt))
    return kept, told


def is_success(rollout: Rollout) -> bool:
    """Returns whether the environment says so."""
    return rollout.finish_reason == "success"


def stripped_successes(
    rollouts: Sequence[Rollout], *, vocabulary: Vocabulary, decode: Callable[[list[int]], str]
) -> tuple[list[Rollout], int]:
    """Returns guided successes of whole groups on the prompt of their first attempt.

    Also how many are left out, which say what only feedback told them. The vocabulary hears them all first.
    A rollout that failed may have no prompt: only graded ones give theirs, and groups without one are passed
    over.
    """
    graded = [r for r in rollouts if r.kind == "whole" and r.reward is not None and r.steps]
    won = [r for r in graded if r.guided and is_success(r)]
    vocabulary.hear([*(r for r in graded if not r.guided), *won])
    prompts = {r.group_id: r.prompt_token_ids for r in graded if not r.guided}
    triples = [(r, r.prompt_token_ids, prompts[r.group_id]) for r in won if r.group_id in prompts]
    kept, _ = untold(triples, vocabulary.shared, decode)
    return kept, len(triples) - len(kept)
