"""Direct preference optimisation: a policy prefers the chosen answer more than its reference did."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from pipeline.training.packing import Batch, Loss
from pipeline.training.protocol import Trainer, TrainingRow
from pipeline.types import Pair

Logprobs = tuple[np.ndarray, np.ndarray]
"""[response] of the chosen answer and of the rejected one; 0 where the policy said nothing."""


def preference_terms(
    chosen: torch.Tensor, rejected: torch.Tensor, margins: torch.Tensor, *, beta: float, mu: float
) -> torch.Tensor:
    """Returns [P] each pair's loss, -log sigmoid(beta (h_w - h_l) - mu (r_w - r_l)), > 0.

    Where pi is pi_ref and mu is 0 it is log 2. Both answers of a pair need one prompt: else the normaliser
    of the reward beta h that pi stands for does not cancel, and the loss is a heuristic.

    Args:
        chosen: [P] h_w = log pi(y_w|x_w) / pi_ref(y_w|x_w), summed over the policy's tokens.
        rejected: [P] h_l, likewise.
        margins: [P] r_w - r_l, > 0.
        beta: how much a log-ratio counts, > 0; the larger, the nearer pi stays to pi_ref.
        mu: how much further apart answers are pushed whose rewards differ more; 0 counts them alike.

    Source: Rafailov et al., arXiv:2305.18290, eq. 7; the margin: Touvron et al., arXiv:2307.09288, eq. 2.

    Example:
        >>> h_w, h_l, margins = torch.tensor([0.0, 5.0]), torch.tensor([0.0, -5.0]), torch.ones(2)
        >>> preference_terms(h_w, h_l, margins, beta=0.1, mu=0.0)
        tensor([0.6931, 0.3133])
        >>> preference_terms(h_w, h_l, margins, beta=0.1, mu=1.0)
        tensor([1.3133, 0.6931])
    """
    return -F.logsigmoid(beta * (chosen - rejected) - mu * margins)


def pair_rows(pairs: Sequence[Pair], reference: Mapping[str, Logprobs] | None = None) -> list[TrainingRow]:
    """Returns the rows of one whole update, a row a pair: the chosen sequence, then the rejected one.

    Columns: `weight`, whose sum over a pair is 1 / pairs; `margins`, one number all over a pair; with a
    reference `ref_logprobs`, its own.
    """
    rows = []
    for pair in pairs:
        sides = pair.chosen, pair.rejected
        first, second = (np.zeros(len(answer.prompt_token_ids)) for answer in sides)
        mask = np.concatenate([first, pair.chosen.loss_mask, second, pair.rejected.loss_mask])
        columns = {"weight": mask / (len(pairs) * mask.sum()), "margins": np.full(len(mask), pair.margin)}
        if reference is not None:
            said = reference[pair.pair_id]
            columns["ref_logprobs"] = np.concatenate([first, said[0], second, said[1]])
        ids = [answer.prompt_token_ids + answer.response_token_ids for answer in sides]
        rows.append(
            TrainingRow(
                np.array([*ids[0], *ids[1]], np.int32),
                {name: column.astype(np.float32) for name, column in columns.items()},
                lengths=(len(ids[0]), len(ids[1])),
            )
        )
    return rows


def dpo_loss(*, beta: float, mu: float) -> Loss:
    """Returns the mean over pairs of `preference_terms`, for rows as `pair_rows` makes them with a reference.

    Reads outputs `logprobs`; columns `weight`, `ref_logprobs`, `margins`. Metrics: as `preference_measures`.
    """
    return partial(_dpo_loss, beta, mu)  # ranks in other processes must be able to unpickle it


def _dpo_loss(
    beta: float, mu: float, outputs: Mapping[str, torch.Tensor], batch: Batch
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    at = batch.columns["weight"] != 0
    lengths = torch.tensor(batch.lengths, device=at.device)
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=at.device), lengths)

    def per_pair(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.new_zeros(len(lengths)).index_add(0, sequence[at], numbers[at]).view(-1, 2)

    chosen, rejected = per_pair(outputs["logprobs"] - batch.columns["ref_logprobs"]).unbind(1)
    weight = per_pair(batch.columns["weight"]).sum(1)
    sums = _sums(chosen, rejected, batch.columns["margins"][batch.starts[::2]], weight, beta=beta, mu=mu)
    return sums["loss"], {name: number.detach() for name, number in sums.items() if name != "loss"}


def _sums(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    margins: torch.Tensor,
    weight: torch.Tensor,
    *,
    beta: float,
    mu: float,
) -> dict[str, torch.Tensor]:
    """Returns sums over P pairs, weighted by [P]."""
    gap = chosen - rejected
    terms = {
        "loss": preference_terms(chosen, rejected, margins, beta=beta, mu=mu),
        "accuracy": (gap.sign() + 1) / 2,
        "log_ratio_gap": gap,
        "chosen_log_ratio": chosen,
    }
    return {name: (weight * numbers).sum() for name, numbers in terms.items()}


def pair_logprobs(trainer: Trainer, pairs: Sequence[Pair]) -> dict[str, Logprobs]:
    """Returns pair_id -> log-probabilities of its answers under the trainer's present policy."""
    rows, found = pair_rows(pairs), {}
    for pair, row, outputs in zip(pairs, rows, trainer.forward(rows), strict=True):
        chosen, rejected = np.split(outputs["logprobs"], [row.lengths[0]])
        prompts = len(pair.chosen.prompt_token_ids), len(pair.rejected.prompt_token_ids)
        found[pair.pair_id] = chosen[prompts[0] :], rejected[prompts[1] :]
    return found


def preference_measures(
    pairs: Sequence[Pair],
    now: Mapping[str, Logprobs],
    reference: Mapping[str, Logprobs],
    *,
    beta: float,
    mu: float,
) -> dict[str, float]:
    """Returns means over pairs: `loss`, `accuracy`, `log_ratio_gap` and `chosen_log_ratio`.

    `accuracy` is of pairs whose chosen answer is ahead of the rejected one, a tie is a half; the gap is
    h_w - h_l; `chosen_log_ratio` h_w falls where both answers get less probable.
    """
    ratios = [
        [
            float((mine - theirs).sum(dtype=np.float64))
            for mine, theirs in zip(now[pair.pair_id], reference[pair.pair_id], strict=True)
        ]
        for pair in pairs
    ]
    chosen, rejected = torch.tensor(ratios, dtype=torch.float64).unbind(1)
    margins = torch.tensor([pair.margin for pair in pairs], dtype=torch.float64)
    weight = torch.full_like(margins, 1 / len(pairs))
    sums = _sums(chosen, rejected, margins, weight, beta=beta, mu=mu)
    return {name: float(number) for name, number in sums.items()}
