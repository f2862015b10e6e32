"""Micro-batches of a small model on a CPU, two at a time, each with half of the threads.

Products of a small model are over before two threads have met, so one pass with two threads leaves the
second core idle for a third of the time; two passes with a thread each do not.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

from pipeline.training.packing import Batch, Forward, Loss, summed
from pipeline.training.protocol import TrainingRow

T = TypeVar("T")

PASSES = 2
"""At a time. Each holds activations and gradients of its own, which more cores would not be worth."""

_SLACK = 1.05  # of half of the tokens: sixteen rows or more fill two halves so evenly


class SideBySide:
    """Threads for passes that torch computes at the same time; `threads` are those of all passes."""

    @classmethod
    def on(cls, device: torch.device) -> "SideBySide | None":
        """Returns passes on a CPU with threads enough, else None: one pass after another is best."""
        threads = torch.get_num_threads() if device.type == "cpu" else 1
        return cls(threads) if threads >= PASSES else None

    def __init__(self, threads: int) -> None:
        def begin() -> None:
            torch.set_num_threads(threads // PASSES)  # of the calling thread

        self._passes = ThreadPoolExecutor(PASSES, "pass", begin)

    def capacity(self, rows: Sequence[TrainingRow], most: int) -> int:
        """Returns tokens of a micro-batch: `most` of all that are at work, or fewer to occupy each pass."""
        tokens = sum(len(row.token_ids) for row in rows)
        return max(1, min(most, math.ceil(_SLACK * tokens)) // PASSES)

    def map(self, work: Callable[[Batch], T], batches: Iterable[Batch]) -> Iterator[T]:
        """Yields what comes of each batch, in order; no more are held than are at work."""
        source = iter(batches)
        while some := list(islice(source, PASSES)):
            yield from self._passes.map(work, some)

    def summed(
        self, batches: Iterable[Batch], forward: Forward, loss: Loss, trained: Sequence[torch.nn.Parameter]
    ) -> dict[str, float]:
        """Returns what `packing.summed` does; adds the gradients to those of `trained`, batch by batch."""

        def one(batch: Batch) -> tuple[dict[str, float], tuple[torch.Tensor | None, ...]]:
            found: list[torch.Tensor | None] = []
            sums = summed(
                [batch],
                forward,
                loss,
                lambda total: found.extend(torch.autograd.grad(total, trained, allow_unused=True)),
            )
            return sums, tuple(found)

        total: dict[str, float] = {}
        for sums, gradients in self.map(one, batches):
            for name, number in sums.items():
                total[name] = total.get(name, 0.0) + number
            for parameter, gradient in zip(trained, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            del gradients  # else they would lie there while the next passes are at work
        return total
