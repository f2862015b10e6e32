"""Training: rows of tokens with numbers on them, a loss, and what takes steps on their sum."""

from typing import TYPE_CHECKING

from pipeline.training.protocol import Trainer, TrainingRow

if TYPE_CHECKING:
    from pipeline.training.packing import Loss

__all__ = ["Loss", "Trainer", "TrainingRow"]
