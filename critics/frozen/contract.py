"""The frozen critic on disk: a Hugging Face folder and contract.json, which says where it may be used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from critics.frozen.calibrator import Calibrator
from pipeline.errors import ArtifactError
from pipeline.ids import digest, file_sha256

CONTRACT = "contract.json"
FORMAT = 3
REWARD = "success"
"""What every environment pays: 1 for a solved task, 0 otherwise."""
_HASHED = ("config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Contract:
    """What a critic's values mean and where they hold.

    Attributes:
        tokenizer_digest: of the token ids it reads.
        template_digest: of the prompt style it reads.
        label_policy_digest: V is this policy's chance of success.
        labels_digest: content of the labels it was fitted on.
        splitter: rule that cuts messages into steps, by name.
        families: task families; one calibrator each.
        contexts: step states it was fitted on: bare, guided.
        reward: what success is.
        gamma: per-step discount.
        temperature: of the labels' sampling.
        top_p: of the labels' sampling.
        top_k: of the labels' sampling.
        max_response_tokens: token budget of the labels' sampling.
        calibrators: family -> map from value logit to probability; holds b0, slopes and shifts.
        converged: whether fitting had nothing left to gain.
        convergence: what the fitting stage says of it.
    """

    tokenizer_digest: str
    template_digest: str
    label_policy_digest: str
    labels_digest: str
    splitter: str
    families: tuple[str, ...]
    contexts: tuple[str, ...]
    reward: str
    gamma: float
    temperature: float
    top_p: float
    top_k: int
    max_response_tokens: int
    calibrators: Mapping[str, Calibrator]
    converged: bool
    convergence: dict[str, Any] = field(default_factory=dict)


def save(folder: Path, contract: Contract) -> str:
    """Writes contract.json beside an exported model and returns the critic's digest.

    The digest covers the contract and, through their hashes, weights, config and tokenizer.

    Raises:
        ArtifactError: the folder holds no exported model.
        ValueError: a family without a calibrator.
    """
    if set(contract.calibrators) != set(contract.families):
        raise ValueError(f"families {contract.families} but calibrators {sorted(contract.calibrators)}")
    weights = sorted(path.name for path in folder.glob("*.safetensors"))
    if not weights or not (folder / "config.json").is_file():
        raise ArtifactError(f"no exported critic in {folder}; export the model before its contract")
    names = [*weights, *(name for name in _HASHED if (folder / name).is_file())]
    content = {
        "format": FORMAT,
        "sha256": {name: file_sha256(folder / name) for name in names},
        **asdict(contract),
    }
    content = json.loads(
        json.dumps(content)
    )  # tuples as JSON knows them, so that the digest survives a round trip
    critic_digest = digest("critic", content)
    text = json.dumps(content | {"critic_digest": critic_digest}, indent=1, sort_keys=True, allow_nan=False)
    (folder / CONTRACT).write_text(text + "\n", "utf-8")
    return critic_digest


def read_contract(folder: Path, *, with_files: bool = True) -> tuple[Contract, str]:
    """Returns the contract of a folder and the critic's digest, without loading the model.

    Args:
        folder: of the critic.
        with_files: whether to compare the files that it names as well, which reads all weights.

    Raises:
        ArtifactError: a file is missing, damaged or differs from what the contract names.
    """
    path = folder / CONTRACT
    if not path.is_file():
        raise ArtifactError(f"no critic in {folder}: {CONTRACT} is missing. Run: make critic")
    try:
        content = json.loads(path.read_text("utf-8"))
        stated = content.pop("critic_digest")
        format_, hashes = content["format"], content["sha256"]
    except (ValueError, KeyError, AttributeError) as error:
        raise ArtifactError(f"{path} is damaged: {error!r}. Run: make critic") from error
    if digest("critic", content) != stated:
        raise ArtifactError(f"{path} was changed after the critic was frozen. Run: make critic")
    if format_ != FORMAT:
        raise ArtifactError(f"{path} has format {format_}, this version reads {FORMAT}. Run: make critic")
    for name, expected in hashes.items() if with_files else ():
        if not (folder / name).is_file():
            raise ArtifactError(f"{folder / name} is missing; the contract names it. Run: make critic")
        if (got := file_sha256(folder / name)) != expected:
            raise ArtifactError(
                f"{folder / name} has SHA-256 {got[:12]}, the contract says {expected[:12]}. Run: make critic"
            )
    fields_ = {name: content[name] for name in Contract.__dataclass_fields__}
    fields_["calibrators"] = {
        family: Calibrator(**numbers | {"position_shifts": tuple(numbers.get("position_shifts", ()))})
        for family, numbers in content["calibrators"].items()
    }
    fields_["families"], fields_["contexts"] = tuple(content["families"]), tuple(content["contexts"])
    return Contract(**fields_), stated
