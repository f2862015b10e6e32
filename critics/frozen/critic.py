"""The frozen critic itself: a network that no longer moves, read where its contract holds, calibrated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification
from transformers.utils.logging import disable_progress_bar

from critics.frozen.contract import Contract, read_contract
from critics.frozen.model import VALUE
from critics.privileged import NO_PARENTS, NOT_TOLD, Privileged
from critics.readouts import value_positions
from pipeline.errors import ArtifactError
from pipeline.ragged import ATTENTION_NAME, run_packed
from pipeline.training import TrainingRow
from pipeline.training.attention import Packing
from pipeline.training.packing import Batch, micro_batches
from pipeline.training.side_by_side import SideBySide
from pipeline.types import Rollout


@dataclass(eq=False)
class FrozenCritic:
    """A critic with weights that no longer move."""

    model: Any  # a Hugging Face sequence classifier
    contract: Contract
    digest: str  # of weights, config, tokenizer, calibrators and contract together
    micro_batch_tokens: int
    privileged: Privileged = NOT_TOLD  # as the contract says

    def values(
        self, rollouts: Sequence[Rollout], parents: Mapping[str, Rollout] = NO_PARENTS
    ) -> list[np.ndarray]:
        """Returns the calibrated V of each rollout's step states, [T] float64 in (0, 1), in the order given.

        One causal pass over prompt and response, read at the token before each step's first. A critic that is
        told verdicts takes them from the rollouts, those on a continuation's earlier steps from its parent.
        Raises ArtifactError for a rollout of another tokenizer or template.
        """
        for row, rollout in enumerate(rollouts):
            try:
                self.check_matches(
                    tokenizer_digest=rollout.tokenizer_digest, template_digest=rollout.template_digest
                )
            except ArtifactError as error:
                raise ArtifactError(f"row {row}, rollout {rollout.rollout_id}: {error}") from error
        [calibrator] = self.contract.calibrators.values()  # all rollouts of a run are of one family
        return [
            calibrator(
                z,
                step_index=np.array([step.step_index for step in rollout.steps]),
                guided=rollout.guided,
                told=told,
            )
            for z, rollout, told in zip(
                self.value_logits(rollouts, parents),
                rollouts,
                self.privileged.told(rollouts, parents),
                strict=True,
            )
        ]

    def start_values(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """Returns the calibrated V(s_0) of bare prompts in token ids, [N] float64, read at their last tokens.

        That is `values` of their rollouts at step 0. Before it there is no verdict that could be told.
        """
        rows = [TrainingRow(np.array(prompt, dtype=np.int32)) for prompt in prompts]
        last = [np.array([len(prompt) - 1]) for prompt in prompts]
        z = np.concatenate(read_value_logits(self.model, rows, last, self.micro_batch_tokens))
        [calibrator] = self.contract.calibrators.values()
        return calibrator(z, step_index=np.zeros(len(z), np.int64), told=[{}] * len(z))

    def close(self) -> None:
        """Moves its weights to host memory, so that others find the GPU free; idempotent."""
        self.model.to("cpu")
        torch.cuda.empty_cache()  # does nothing on a machine without GPUs

    def value_logits(
        self, rollouts: Sequence[Rollout], parents: Mapping[str, Rollout] = NO_PARENTS
    ) -> list[np.ndarray]:
        """Returns the raw value logits z of each rollout's step states, [T] float64."""
        read = self.privileged.as_read(rollouts, parents)
        rows = [TrainingRow(np.array(r.token_ids, dtype=np.int32)) for r in read]
        positions = [value_positions(r) for r in read]
        return read_value_logits(self.model, rows, positions, self.micro_batch_tokens)

    def check_matches(
        self, *, families: Sequence[str] = (), contexts: Sequence[str] = (), **given: Any
    ) -> None:
        """Raises ArtifactError unless the critic was made for exactly what is given, by fields of `Contract`.

        It may have been made for more families and contexts than are given.
        """
        wrong = {name: got for name, got in given.items() if got != getattr(self.contract, name)}
        for name, wanted in (("families", families), ("contexts", contexts)):
            if unknown := sorted(set(wanted) - set(getattr(self.contract, name))):
                wrong[name] = unknown
        for name, got in wrong.items():
            raise ArtifactError(
                f"critic {self.digest[:12]} was made for {name} {getattr(self.contract, name)}, got {got}. "
                "Its values would mean nothing here. Next: label such states, then run: make critic"
            )


def load(folder: Path, *, device: str = "cpu", micro_batch_tokens: int = 16384) -> FrozenCritic:
    """Returns the critic of a folder once every file agrees with its contract; see `critics.load`."""
    contract, critic_digest = read_contract(folder)
    disable_progress_bar()
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    model.set_attn_implementation(ATTENTION_NAME)
    model = model.eval().to(device).requires_grad_(False)
    privileged = Privileged.of(contract.privileged, folder)
    return FrozenCritic(model, contract, critic_digest, micro_batch_tokens, privileged)


def read_value_logits(
    model: Any, rows: Sequence[TrainingRow], positions: Sequence[np.ndarray], micro_batch_tokens: int
) -> list[np.ndarray]:
    """Returns z at the given token positions of each row, float64; rows are batched by length."""
    device = model.score.weight.device

    def one(batch: Batch) -> dict[int, np.ndarray]:
        with torch.inference_mode():
            packing = Packing(batch.lengths, device)
            hidden = run_packed(model.base_model, batch.token_ids.to(device), packing)
            found = {}
            for i, start in zip(batch.row_indices, batch.starts, strict=True):
                states = hidden[torch.as_tensor(start + positions[i], device=device)].float()
                z = torch.nn.functional.linear(states, model.score.weight.float())[:, VALUE]
                found[i] = z.cpu().numpy().astype(np.float64)
            return found

    passes, tokens = SideBySide.on(device), micro_batch_tokens
    batches = micro_batches(rows, tokens if passes is None else passes.capacity(rows, tokens))
    parts = map(one, batches) if passes is None else passes.map(one, batches)
    results = {i: z for part in parts for i, z in part.items()}
    torch.cuda.empty_cache()  # engine and trainer need the GPU before it scores again; a no-op without one
    return [results[i] for i in range(len(rows))]
