"""The frozen critic on disk: a Hugging Face folder and contract.json, which says where it may be used."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from critics.frozen.calibrator import Calibrator
from critics.privileged import Kind
from pipeline.errors import ArtifactError
from pipeline.ids import digest, file_sha256
from pipeline.processes.threads import in_threads

CONTRACT = "contract.json"
FORMAT = 4
REWARD = "success"
"""What every environment pays: success as the environment grades it, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Contract:
    """What a critic's values mean and where they hold."""

    tokenizer_digest: str  # of the token ids it reads
    template_digest: str  # of the prompt style it reads
    label_policy_digest: str  # V is this policy's chance of success
    labels_digest: str  # content of the labels it was fitted on
    splitter: str  # rule that cuts messages into steps, by name
    families: tuple[str, ...]  # of tasks; one calibrator each
    contexts: tuple[str, ...]  # step states it was fitted on: bare, guided
    reward: str  # what success is
    gamma: float  # per-step discount
    temperature: float  # this and the next three: of the labels' sampling
    top_p: float
    top_k: int
    max_response_tokens: int
    calibrators: Mapping[str, Calibrator]
    converged: bool  # whether fitting had nothing left to gain
    privileged: Kind = "none"  # what it is told of verdicts on earlier steps
    convergence: dict[str, Any] = field(default_factory=dict)  # what the fitting stage says of it


def save(folder: Path, contract: Contract) -> str:
    """Writes contract.json beside an exported model and returns the critic's digest.

    The digest covers the contract and, through their hashes, weights, config and tokenizer.
    """
    weights = sorted(path.name for path in folder.glob("*.safetensors*"))  # of several files the index too
    if not weights or not (folder / "config.json").is_file():
        raise ArtifactError(f"no exported critic in {folder}; export the model before its contract")
    names = [*weights, *(name for name in ("config.json", "tokenizer.json") if (folder / name).is_file())]
    hashes = _sha256_of(folder, names)
    # Tuples as JSON knows them, so that the digest survives a round trip.
    content = json.loads(json.dumps({"format": FORMAT, "sha256": hashes, **asdict(contract)}))
    critic_digest = digest("critic", content)
    text = json.dumps(content | {"critic_digest": critic_digest}, indent=1, sort_keys=True, allow_nan=False)
    (folder / CONTRACT).write_text(text + "\n", "utf-8")
    return critic_digest


def _sha256_of(folder: Path, names: Collection[str]) -> dict[str, str]:
    found = in_threads(file_sha256, [folder / name for name in names])
    return dict(zip(names, found, strict=True))


def read_contract(folder: Path, *, with_files: bool = True) -> tuple[Contract, str]:
    """Returns the contract of a folder and the critic's digest, without loading the model.

    `with_files` compares the files that it names as well, which reads all weights. Raises ArtifactError if a
    file is missing, damaged or differs from what the contract names.
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
    for name in hashes if with_files else ():
        if not (folder / name).is_file():
            raise ArtifactError(f"{folder / name} is missing; the contract names it. Run: make critic")
    for name, got in _sha256_of(folder, hashes).items() if with_files else ():
        if got != (expected := hashes[name]):
            raise ArtifactError(
                f"{folder / name} has SHA-256 {got[:12]}, the contract says {expected[:12]}. Run: make critic"
            )
    made = {name: content[name] for name in Contract.__dataclass_fields__}
    made["families"], made["contexts"] = tuple(content["families"]), tuple(content["contexts"])
    made["calibrators"] = {
        family: Calibrator(**numbers | {"position_shifts": tuple(numbers["position_shifts"])})
        for family, numbers in content["calibrators"].items()
    }
    return Contract(**made), stated
