"""Ids, digests and seeds: pure functions of what they identify, never of batching or order.

`H` is BLAKE2b-128 of canonical JSON; files use SHA-256. Source: DESIGN.md, "Ids, seeds, digests".
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """Returns the one JSON text of a value: sorted keys, no spaces, no NaN.

    Example:
        >>> canonical_json({"b": 1, "a": [True, None]})
        '{"a":[true,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(*parts: Any) -> str:
    """Returns H(parts): 32 hexadecimal characters."""
    return hashlib.blake2b(canonical_json(parts).encode(), digest_size=16).hexdigest()


def seed_of(*parts: Any) -> int:
    """Returns a seed in [0, 2**63) that depends on the parts alone."""
    raw = hashlib.blake2b(canonical_json(parts).encode(), digest_size=8).digest()
    return int.from_bytes(raw, "big") >> 1


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256(path: Path) -> str:
    """Returns `file_sha256`, read once in a process as long as the file's size and time stay.

    The runs of a comparison all ask for the weights of one base.
    """
    facts = path.stat()
    return _known_sha256(path, facts.st_size, facts.st_mtime_ns)


@cache
def _known_sha256(path: Path, size: int, changed: int) -> str:
    return file_sha256(path)


def group_id(stage_key: str, task_id: str, iteration: int) -> str:
    """Returns the id of the rollouts of one task in one iteration."""
    return digest("group", stage_key, task_id, iteration)


def rollout_id(group: str, attempt: int, draw: int) -> str:
    """Returns the id of one rollout: `draw` numbers the rollouts of one attempt of a group."""
    return digest("rollout", group, attempt, draw)


def continuation_id(stage_key: str, parent: str, start_step_index: int, context: str, draw: int) -> str:
    """Returns the id of a continuation of rollout `parent` from the state before a step."""
    return digest("continuation", stage_key, parent, start_step_index, context, draw)
