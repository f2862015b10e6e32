"""Pairs of answers, to be changed by whoever needs others."""

from typing import Any

import numpy as np

from pipeline.types import Answer, Pair


def answer(answer_id: str, said: tuple[int, ...] = (7, 8), **changes: Any) -> Answer:
    """Returns an answer whose tokens the policy said, after the prompt (1, 2)."""
    fields: dict[str, Any] = {
        "answer_id": answer_id, "task_id": "t", "reward": 1.0, "guided": False, "prompt": "", "text": "",
        "prompt_token_ids": (1, 2), "response_token_ids": said, "loss_mask": (1,) * len(said),
    }  # fmt: skip
    return Answer(**fields | changes)


def pair(pair_id: str, chosen: Answer | None = None, rejected: Answer | None = None, **changes: Any) -> Pair:
    """Returns a pair after one prompt."""
    fields: dict[str, Any] = {"match": "prompt", "similarity": 1.0, "margin": 1.0, "held_out": False}
    chosen = chosen or answer(f"{pair_id} chosen")
    rejected = rejected or answer(f"{pair_id} rejected", (9,), reward=0.0)
    return Pair(pair_id=pair_id, chosen=chosen, rejected=rejected, **fields | changes)


def random_pairs(num: int, vocab: int, longest: int = 12, seed: int = 0) -> list[Pair]:
    """Returns pairs of unlike lengths; a third has replies in it, and a third prompts that differ."""
    rng = np.random.default_rng(seed)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(i) for i in rng.integers(3, vocab, rng.integers(low, high + 1)))

    def made(name: str, prompt: tuple[int, ...], replies: bool) -> Answer:
        said = tokens(2, longest)
        mask = tuple(int(not replies or j % 3 != 1) for j in range(len(said)))
        return answer(name, said, prompt_token_ids=prompt, loss_mask=mask)

    pairs = []
    for i in range(num):
        prompt, margin = tokens(1, longest), float(rng.uniform(0.4, 1.0))
        chosen = made(f"w{i}", prompt, i % 3 == 1)
        rejected = made(f"l{i}", tokens(1, longest) if i % 3 == 2 else prompt, i % 3 == 1)
        pairs.append(pair(f"p{i}", chosen, rejected, margin=margin, match="task" if i % 3 == 2 else "prompt"))
    return pairs
