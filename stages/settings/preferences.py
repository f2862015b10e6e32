"""Preferences: pairs of answers, and direct preference optimisation on them."""

from env.preferences import Preferred
from pipeline.settings import Section, setting


class Preferences(Section):
    """Pairs of a chosen and a rejected answer."""

    recorded: Preferred | None = setting(
        None, "recorded preferences, in place of rollouts: chosen and rejected answers (docs/own-tasks.md)"
    )


class Dpo(Section):
    """Direct preference optimisation on `preferences`."""

    beta: float = setting(0.1, "weight of log-ratios to the reference: arXiv:2305.18290", gt=0)
    mu: float = setting(
        0.0, "of the difference of rewards, by which log-ratios should differ more: arXiv:2307.09288", ge=0
    )
    learning_rate: float = setting(5e-7, "constant", gt=0)
    batch_pairs: int = setting(64, "pairs per update", ge=1)
    max_epochs: int = setting(3, "at most; the first without a lower held-out loss ends it before", ge=1)
