"""Everything that estimates V(s), the chance that the starting policy still succeeds from a step state."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from critics.frozen.critic import FrozenCritic


def load(folder: Path, *, device: str = "cpu", micro_batch_tokens: int = 16384) -> "FrozenCritic":
    """Returns the frozen critic of a folder: `.values(rollouts)`, `.digest`, `.check_matches(...)`.

    A forward pass reads at most `micro_batch_tokens`, or one longer rollout. Raises ArtifactError if a file
    is missing or differs from what the contract names.
    """
    from critics.frozen.critic import load as load_contract  # torch is imported only here

    return load_contract(folder, device=device, micro_batch_tokens=micro_batch_tokens)
