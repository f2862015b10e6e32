"""Direct preference optimisation: a policy prefers the chosen answer more than its reference did."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from pipeline.training.packing import Batch, Loss
from pipeline.training.protocol import Trainer, TrainingRow
from pipeline.types import Answer, Pair

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


def pair_rows(pairs: Sequence[Pair], reference: Mapping[str, Logprobs]) -> list[TrainingRow]:
    """Returns the rows of one whole update, a row a pair: the chosen sequence, then the rejected one.

    Columns: `weight`, whose sum over a pair is 1 / pairs; `ref_logprobs`, pi_ref's; `margins`, one number all
    over a pair.
    """
    rows = []
    for pair in pairs:
        mask = _joined(pair, (pair.chosen.loss_mask, pair.rejected.loss_mask))
        columns = {
            "weight": mask / (len(pairs) * mask.sum()),
            "ref_logprobs": _joined(pair, reference[pair.pair_id]),
            "margins": np.full(len(mask), pair.margin),
        }
        rows.append(
            TrainingRow(
                np.array([*_ids(pair.chosen), *_ids(pair.rejected)], np.int32),
                {name: column.astype(np.float32) for name, column in columns.items()},
                lengths=(len(_ids(pair.chosen)), len(_ids(pair.rejected))),
            )
        )
    return rows


def dpo_loss(*, beta: float, mu: float) -> Loss:
    """Returns the mean over pairs of `preference_terms`, for rows as `pair_rows` makes them.

    Reads outputs `logprobs`; columns `weight`, `ref_logprobs`, `margins`. Metrics, means over pairs:
    `dpo_loss`, `accuracy` (chosen ahead of rejected, a tie is a half), `log_ratio_gap` h_w - h_l, and
    `chosen_log_ratio` h_w, which falls where both answers get less probable.
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
    margins = batch.columns["margins"][batch.starts[::2]]
    loss = (weight * preference_terms(chosen, rejected, margins, beta=beta, mu=mu)).sum()
    with torch.no_grad():
        gap = chosen - rejected
        return loss, {
            "dpo_loss": loss.detach(),
            "accuracy": (weight * (gap.sign() + 1) / 2).sum(),
            "log_ratio_gap": (weight * gap).sum(),
            "chosen_log_ratio": (weight * chosen).sum(),
        }


def pair_logprobs(trainer: Trainer, pairs: Sequence[Pair]) -> dict[str, Logprobs]:
    """Returns pair_id -> log-probabilities of its answers under the trainer's present policy."""
    unknown = {
        p.pair_id: (np.zeros(len(p.chosen.loss_mask)), np.zeros(len(p.rejected.loss_mask))) for p in pairs
    }
    rows = pair_rows(pairs, unknown)
    found = {}
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
    """Returns `loss`, `accuracy`, `log_ratio_gap` and `chosen_log_ratio` of pairs, as `dpo_loss` has them."""
    log_ratios = torch.tensor(
        [
            [
                float((mine - theirs).sum(dtype=np.float64))
                for mine, theirs in zip(now[i], reference[i], strict=True)
            ]
            for i in (pair.pair_id for pair in pairs)
        ],
        dtype=torch.float64,
    )
    chosen, rejected = log_ratios.unbind(1)
    margins = torch.tensor([pair.margin for pair in pairs], dtype=torch.float64)
    return {
        "loss": float(preference_terms(chosen, rejected, margins, beta=beta, mu=mu).mean()),
        "accuracy": float((((chosen - rejected).sign() + 1) / 2).mean()),
        "log_ratio_gap": float((chosen - rejected).mean()),
        "chosen_log_ratio": float(chosen.mean()),
    }


def _ids(answer: Answer) -> tuple[int, ...]:
    return answer.prompt_token_ids + answer.response_token_ids


def _joined(
    pair: Pair, of_responses: tuple[Sequence[float] | np.ndarray, Sequence[float] | np.ndarray]
) -> np.ndarray:
    """Returns [all tokens of a pair] float64: the numbers of both responses, 0 on their prompts."""
    prompts = (np.zeros(len(answer.prompt_token_ids)) for answer in (pair.chosen, pair.rejected))
    parts = [
        np.concatenate([p, np.asarray(x, np.float64)]) for p, x in zip(prompts, of_responses, strict=True)
    ]
    return np.concatenate(parts)
