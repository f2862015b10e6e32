"""What every trainer's checkpoint has: tensors in safetensors files, and a state that vouches for them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ArtifactError
from pipeline.ids import file_sha256

STATE = "state.json"


def write_state(folder: Path, state: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Writes the state last, so that a folder with one is whole; `digests` are of its files, by name."""
    content = {**state, "sha256": dict(digests)}
    (folder / STATE).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_state(folder: Path) -> dict[str, Any]:
    """Returns the state; its `sha256` names the files of the checkpoint.

    Raises:
        ArtifactError: the state or a file is missing, or a digest differs.
    """
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
        for name, expected in state["sha256"].items():
            if (got := file_sha256(folder / name)) != expected:
                raise ArtifactError(
                    f"{folder / name}: SHA-256 is {got[:12]}, state.json says {expected[:12]}"
                )
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{folder} is not a whole checkpoint: {error!r}") from error
    return state
