"""What a critic may be told that the actor never sees: the verifier's word on the steps before a state.

Only the actor is deployed, a critic is a tool of training. Whatever is fixed before a_i is chosen leaves
the policy gradient as it is: E[grad log pi(a_i | history) V(history, h)] = 0 (arXiv:2509.26000). Verdicts on
steps before i are fixed then. Those on step i and later, and the outcome, are not: nothing here reads them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self, TypeVar

from pipeline.types import Rollout, Step, VerifierStatus

Kind = Literal["none", "features", "words"]
"""Nothing; counts of verdicts that shift a calibrated value; verdicts written into the rows that are read."""
Counts = Mapping[str, float]
"""Of verdicts before one state, by name."""
Number = TypeVar("Number", int, float)
NO_PARENTS: Mapping[str, Rollout] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Privileged:
    """What one critic is told of rollouts. `parents` are those of the continuations among them, by id."""

    kind: Kind = "none"
    encode: Callable[[str], Sequence[int]] | None = None  # text to token ids; only `words` needs it

    @classmethod
    def of(cls, kind: Kind, tokenizer_folder: Path) -> Self:
        """Returns what a critic of a kind is told, in words of the tokenizer in a folder."""
        if kind != "words":
            return cls(kind)
        from pipeline.models.policy import load_tokenizer  # torch is imported only here

        tokenizer = load_tokenizer(tokenizer_folder)
        return cls(kind, lambda text: tokenizer.encode(text, add_special_tokens=False))

    def as_read(
        self, rollouts: Sequence[Rollout], parents: Mapping[str, Rollout] = NO_PARENTS
    ) -> list[Rollout]:
        """Returns the rollouts with the tokens that the network reads; steps and states are the same ones."""
        if self.kind != "words":
            return list(rollouts)
        if self.encode is None:
            raise ValueError("a critic that reads verdicts as words needs a tokenizer's `encode`")
        return [with_words(r, parent_of(r, parents), self.encode) for r in rollouts]

    def told(
        self, rollouts: Sequence[Rollout], parents: Mapping[str, Rollout] = NO_PARENTS
    ) -> list[list[Counts] | None]:
        """Returns what the calibrator is told of each rollout's states [T]; None where it is told nothing."""
        if self.kind != "features":
            return [None] * len(rollouts)
        return [counts_of(r, parent_of(r, parents)) for r in rollouts]


NOT_TOLD = Privileged()


def parent_of(rollout: Rollout, parents: Mapping[str, Rollout]) -> Rollout | None:
    """Returns the whole rollout that a continuation began in, None of one that began with its prompt."""
    if rollout.start_step_index == 0:
        return None
    name = rollout.parent_rollout_ids[0]
    if name not in parents:
        raise ValueError(
            f"rollout {rollout.rollout_id} continues {name} from step {rollout.start_step_index}; a critic "
            "that is told of earlier steps needs that rollout too. Next: give it among `parents`"
        )
    return parents[name]


def counts_before(verdicts: Sequence[tuple[VerifierStatus, str]]) -> list[Counts]:
    """Returns for each state s_i what the verdicts (status, code) on steps 0 .. i-1 say; [T] for T verdicts.

    `ok`: right steps so far; `wrong`: 1 after a wrong one, `wrong again`: 1 after two; `wrong CODE`: 1 after
    one with that code. Names that would be 0 are left out.

    Example:
        >>> [dict(counts) for counts in counts_before([("ok", ""), ("wrong", "form"), ("unknown", "")])]
        [{}, {'ok': 1.0}, {'ok': 1.0, 'wrong': 1.0, 'wrong form': 1.0}]
    """
    found: list[Counts] = []
    now: dict[str, float] = {}
    for status, code in verdicts:
        found.append(now)
        if status == "ok":
            now = now | {"ok": now.get("ok", 0.0) + 1}
        elif status == "wrong":
            again = {"wrong again": 1.0} if "wrong" in now else {}
            now = now | again | {"wrong": 1.0, f"wrong {code}": 1.0}
    return found


def counts_of(rollout: Rollout, parent: Rollout | None = None) -> list[Counts]:
    """Returns the counts before each of a rollout's own states; a continuation's begin in its parent."""
    earlier = parent.steps[: rollout.start_step_index] if parent is not None else ()
    steps = (*earlier, *rollout.steps)
    return counts_before([(step.verifier_status, step.verifier_code) for step in steps])[len(earlier) :]


def with_words(rollout: Rollout, parent: Rollout | None, encode: Callable[[str], Sequence[int]]) -> Rollout:
    """Returns a rollout with `ok` or `wrong CODE` as tokens right after each step, before the world's reply.

    Nothing follows a step without a verdict, nor the last step, which no state comes after. The words belong
    to no step, as replies do.
    """
    start, begun = rollout.start_step_index, 0
    earlier: tuple[Step, ...] = ()
    if parent is not None:
        earlier, begun = parent.steps[:start], parent.steps[start].token_start
    shown = len(rollout.prompt_token_ids) - begun  # tokens before the parent's response
    told = [(shown + step.token_end, _word(step, encode)) for step in earlier]
    own = [(step.token_end, _word(step, encode)) for step in rollout.steps[:-1]]
    blank: list[tuple[int, tuple[int, ...]]] = [(at, (0,) * len(word)) for at, word in own]
    shifts = accumulate((len(word) for _, word in own), initial=0)
    return replace(
        rollout,
        prompt_token_ids=_inserted(rollout.prompt_token_ids, told),
        response_token_ids=_inserted(rollout.response_token_ids, own),
        loss_mask=_inserted(rollout.loss_mask, blank),
        logprobs=_inserted(rollout.logprobs, blank),
        steps=tuple(
            replace(step, token_start=step.token_start + by, token_end=step.token_end + by)
            for step, by in zip(rollout.steps, shifts, strict=False)
        ),
    )


def _word(step: Step, encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
    if step.verifier_status == "unknown":
        return ()
    return tuple(encode("ok" if step.verifier_status == "ok" else f"wrong {step.verifier_code}"))


def _inserted(
    column: tuple[Number, ...], parts: Sequence[tuple[int, Sequence[Number]]]
) -> tuple[Number, ...]:
    """Returns a column with each part before the item that was at its place; places rise."""
    made: list[Number] = []
    done = 0
    for place, part in parts:
        made.extend(column[done:place])
        made.extend(part)
        done = place
    made.extend(column[done:])
    return tuple(made)
