"""One training loop that is blind to the algorithm: rows of tokens with numbers on them, and a loss.

Every loss is a plain sum over tokens (or states). Whoever builds the rows divides the `weight` column by
the whole update's total first, so the result cannot depend on micro-batches, packing or ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipeline.errors import ArtifactError, DivergenceError

if TYPE_CHECKING:
    import torch

    from pipeline.artifacts.checkpoints import FileFacts
    from pipeline.hardware import GpuUse
    from pipeline.training.packing import Loss


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One rollout as the trainer sees it.

    Attributes:
        token_ids: [T] int32, prompt and response.
        columns: name -> [T] float32; entry t belongs to token t. For a policy loss that is the prediction
            of token t from tokens < t (so entry 0 is unused); for a critic it is the read-out at token t.
            `weight` is always there: 0 where nothing is trained.
        lengths: of the sequences in it, one after another, none of which sees another: a loss that compares
            two answers needs both in one batch. Empty: it is one sequence.
    """

    token_ids: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()


class Trainer(Protocol):
    """A model, its optimizer and schedule.

    What a forward pass yields depends on the model's head: a policy yields `logprobs` [N] of each
    token given those of its row before it (0 at the first); a critic yields `scores` [N, 2], value
    logit and error logit read at each token.
    """

    num_updates: int
    learning_rate: Callable[[int], float] | None  # updates taken -> rate of the next; None only scores

    def set_head_only(self, head_only: bool) -> None:
        """Trains a critic's head alone, or everything; keeps the moments of what stays."""

    def update(self, rows: Sequence[TrainingRow], loss: Loss) -> dict[str, float]:
        """Takes one optimizer step on the sum of `loss` over all rows of an update.

        Returns the loss's metrics (summed over micro-batches), `loss`, `grad_norm` (before clipping) and
        `learning_rate`. A non-finite loss or gradient raises DivergenceError before the weights change.
        """

    def forward(self, rows: Sequence[TrainingRow], adapted: bool = True) -> list[dict[str, np.ndarray]]:
        """Returns each row's outputs without gradient, unpadded, in the order given.

        With `adapted` false as before the model got adapters: its weights are a reference without a copy.

        A policy's numbers are computed where `weight` is not 0, without such a column at every token that
        another precedes; elsewhere they are 0.
        """

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Returns the weights by Hugging Face name, as an engine loads them; copy what must last."""

    def save_checkpoint(self, folder: Path) -> FileFacts:
        """Writes weights, optimizer and update count: safetensors and JSON, never pickle.

        Returns path -> size and SHA-256 of files that it has made durable. `Checkpoints`, which calls it,
        does that for the others, and vouches for all.
        """

    def load_checkpoint(self, folder: Path) -> None:
        """Restores what `save_checkpoint` wrote.

        Raises:
            ArtifactError: it is not a whole checkpoint, or of another model.
        """

    def export(self, folder: Path) -> None:
        """Writes the model in Hugging Face format (config, safetensors)."""

    def offload(self) -> None:
        """Moves what it holds on GPUs to host memory while others need them; idempotent, a no-op on a CPU.

        Whatever needs it there next moves it back by itself; nothing that it computes changes.
        """

    def gpu_use(self) -> list[GpuUse]:
        """Returns what it took of each of its GPUs since it was asked last; nothing on a CPU."""

    def close(self) -> None:
        """Frees what it holds; idempotent."""


class Scorer(Protocol):
    """What only scores rows: a trainer, or its weights before they got adapters."""

    def forward(self, rows: Sequence[TrainingRow]) -> list[dict[str, np.ndarray]]:
        """Returns each row's outputs; see `Trainer`."""


@dataclass(frozen=True, slots=True)
class Unadapted:
    """A trainer's model as it was before it got adapters: a reference without a copy of the weights."""

    trainer: Trainer

    def forward(self, rows: Sequence[TrainingRow]) -> list[dict[str, np.ndarray]]:
        """Returns each row's outputs; see `Trainer`."""
        return self.trainer.forward(rows, adapted=False)


def diverged(num_updates: int, loss: float, grad_norm: float) -> DivergenceError:
    """Returns the error of an update that is not taken."""
    return DivergenceError(
        f"training diverged at update {num_updates}: loss {loss}, gradient norm {grad_norm}; "
        "both must be finite. The weights are those before it. Next: a lower learning_rate or more "
        "warm-up, then the stage again with --fresh (the same command alone would end here again)"
    )


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes what a checkpoint has beside its tensors."""
    (folder / "state.json").write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")


def read_state(folder: Path) -> dict[str, Any]:
    """Returns what `write_state` wrote; ArtifactError if it is not there."""
    try:
        return dict(json.loads((folder / "state.json").read_text()))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder} is not a whole checkpoint: {error!r}") from error
