"""Who writes feedback on a failed attempt in an environment's place: a server, or the policy itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.engines import Generation, GenerationRequest
from pipeline.types import Message


@dataclass(frozen=True, slots=True)
class Ask:
    """A text that is wanted."""

    rollout_id: str  # the attempt it is about; unique among those in flight
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one ask."""

    rollout_id: str
    status: str  # `ok`, or why nothing was written: one of FEEDBACK_FAILURES, `no_room`, `cut_off`
    text: str = ""  # as it was written
    num_tokens: int = 0  # generated for it


class Writer(Protocol):
    """Writes texts side by side; each is asked for once, and answered once."""

    source: str  # as `Rollout.feedback_source` names it

    def ask(self, asks: Sequence[Ask]) -> list[GenerationRequest]:
        """Begins to write. Returns what the player's engine is to sample for it, [] if others write."""
        ...

    def read(self, generation: Generation) -> Answer:
        """Returns the answer that the engine sampled."""
        ...

    def collect(self, wait: bool) -> list[Answer]:
        """Returns answers of others; at least one if it may wait and one is due."""
        ...
