"""The frozen critic on disk: a Hugging Face folder and contract.json, which says where it may be used."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from critics.fit.rows import value_positions
from critics.frozen.calibrator import Calibrator
from pipeline.errors import ArtifactError
from pipeline.ids import digest, file_sha256
from pipeline.training import TrainingRow
from pipeline.types import Rollout

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


def load(folder: Path, *, device: str = "cpu", micro_batch_tokens: int = 16384) -> FrozenCritic:
    """Returns the critic of a folder once every file agrees with its contract; see `critics.load`."""
    contract, critic_digest = read_contract(folder)
    import torch
    from transformers import AutoModelForSequenceClassification
    from transformers.utils.logging import disable_progress_bar

    from pipeline.training.attention import ATTENTION_NAME

    disable_progress_bar()
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    model.set_attn_implementation(ATTENTION_NAME)
    model = model.eval().to(device).requires_grad_(False)
    return FrozenCritic(model, contract, critic_digest, micro_batch_tokens=micro_batch_tokens)


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


class FrozenCritic:
    """A critic with weights that no longer move.

    Attributes:
        contract: what its values mean.
        digest: identifies weights, config, tokenizer, calibrators and contract together.
        model: the network, a Hugging Face sequence classifier.
    """

    def __init__(
        self, model: Any, contract: Contract, critic_digest: str, *, micro_batch_tokens: int
    ) -> None:
        self.model = model
        self.contract = contract
        self.digest = critic_digest
        self._micro_batch_tokens = micro_batch_tokens

    def values(
        self, rollouts: Sequence[Rollout], *, families: Sequence[str] | None = None
    ) -> list[np.ndarray]:
        """Returns the calibrated V of each rollout's step states, [T] float64 in (0, 1), in the order given.

        One causal pass over prompt and response, read at the token before each step's first.

        Args:
            rollouts: with steps; of the contract's tokenizer and template.
            families: of each rollout; needed only if the critic has several.

        Raises:
            ArtifactError: a rollout of another tokenizer or template.
            ValueError: families are needed, or unknown.
        """
        if families is None:
            if len(self.contract.families) != 1:
                raise ValueError(f"this critic has families {self.contract.families}; say each rollout's")
            families = [self.contract.families[0]] * len(rollouts)
        for row, rollout in enumerate(rollouts):
            try:
                self.check_matches(
                    tokenizer_digest=rollout.tokenizer_digest, template_digest=rollout.template_digest
                )
            except ArtifactError as error:
                raise ArtifactError(f"row {row}, rollout {rollout.rollout_id}: {error}") from error
        unknown = set(families) - set(self.contract.families)
        if unknown or len(families) != len(rollouts):
            raise ValueError(
                f"{len(rollouts)} rollouts, {len(families)} families, unknown: {sorted(unknown)}"
            )
        return [
            self.contract.calibrators[family](
                z, step_index=np.array([step.step_index for step in rollout.steps]), guided=rollout.guided
            )
            for family, z, rollout in zip(families, self.value_logits(rollouts), rollouts, strict=True)
        ]

    def close(self) -> None:
        """Moves its weights to host memory, so that others find the GPU free; idempotent."""
        import torch

        self.model.to("cpu")
        torch.cuda.empty_cache()  # does nothing on a machine without GPUs

    def value_logits(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """Returns the raw value logits z of each rollout's step states, [T] float64."""
        rows = [TrainingRow(np.array(r.token_ids, dtype=np.int32)) for r in rollouts]
        return read_value_logits(
            self.model, rows, [value_positions(r) for r in rollouts], self._micro_batch_tokens
        )

    def check_matches(
        self,
        *,
        tokenizer_digest: str | None = None,
        template_digest: str | None = None,
        label_policy_digest: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        max_response_tokens: int | None = None,
        gamma: float | None = None,
        splitter: str | None = None,
        reward: str | None = None,
        families: Sequence[str] = (),
        contexts: Sequence[str] = (),
    ) -> None:
        """Raises ArtifactError unless the critic was made for exactly what is given; None is not compared.

        It may have been made for more families and contexts than are given.
        """
        given = {
            "tokenizer_digest": tokenizer_digest,
            "template_digest": template_digest,
            "label_policy_digest": label_policy_digest,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "max_response_tokens": max_response_tokens,
            "gamma": gamma,
            "splitter": splitter,
            "reward": reward,
        }
        for name, got in given.items():
            if got is not None and got != (made_for := getattr(self.contract, name)):
                raise ArtifactError(
                    f"critic {self.digest[:12]} was made for {name} {made_for}, got {got}. "
                    "Its values would mean nothing here; run: make critic"
                )
        if unknown := set(families) - set(self.contract.families):
            raise ArtifactError(
                f"critic {self.digest[:12]} was made for families {self.contract.families}, got "
                f"{sorted(unknown)}. Its values would mean nothing here; run: make critic"
            )
        if strangers := set(contexts) - set(self.contract.contexts):
            raise ArtifactError(
                f"critic {self.digest[:12]} was fitted on {self.contract.contexts} states, "
                f"not on {sorted(strangers)}. Label such states and run: make critic"
            )


def read_value_logits(
    model: Any, rows: Sequence[TrainingRow], positions: Sequence[np.ndarray], micro_batch_tokens: int
) -> list[np.ndarray]:
    """Returns z at the given token positions of each row, float64; rows are batched by length."""
    import torch

    from critics.frozen.model import VALUE
    from pipeline.training.attention import Packing, run_packed
    from pipeline.training.packing import micro_batches

    device = model.score.weight.device
    results: list[np.ndarray] = [np.zeros(0)] * len(rows)
    with torch.inference_mode():
        for batch in micro_batches(rows, micro_batch_tokens):
            packing = Packing(batch.lengths, device)
            hidden = run_packed(model.base_model, batch.token_ids.to(device), packing)
            for i, start in zip(batch.row_indices, batch.starts, strict=True):
                states = hidden[torch.as_tensor(start + positions[i], device=device)].float()
                z = torch.nn.functional.linear(states, model.score.weight.float())[:, VALUE]
                results[i] = z.cpu().numpy().astype(np.float64)
    return results
