"""Training: rows of tokens with numbers on them, a loss, and what takes steps on their sum."""

from pipeline.training.protocol import Trainer, TrainingRow

__all__ = ["Trainer", "TrainingRow"]
