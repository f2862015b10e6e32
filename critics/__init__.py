"""Everything that estimates V(s), the chance that the starting policy still succeeds from a step state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from critics.frozen.critic import FrozenCritic


def load(folder: Path, *, device: str = "cpu", micro_batch_tokens: int = 16384) -> FrozenCritic:
    """Returns the frozen critic of a folder: `.values(rollouts)`, `.digest`, `.check_matches(...)`.

    The documented loader of calibrated values; torch is imported only here.

    Args:
        folder: what `critics.frozen.contract.save` wrote.
        device: torch's name of it.
        micro_batch_tokens: tokens, padding included, per forward pass.

    Raises:
        ArtifactError: a file is missing or differs from what the contract names.
    """
    from critics.frozen.critic import load as load_contract

    return load_contract(folder, device=device, micro_batch_tokens=micro_batch_tokens)
