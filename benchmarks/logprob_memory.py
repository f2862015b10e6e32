"""Log-probabilities in tiles against the whole matrix of logits: memory, time, equality; packing fill.

    python -m benchmarks.logprob_memory      # 4,096 tokens on a CPU; --tokens 16384 for a GPU

Vocabulary 151,936 and width 1,024, as Qwen3-0.6B has. Each measurement is a process of its own: loss and
gradient, and the peak of memory above what the inputs take, both gradients included (that of the weight
alone: 0.58 GiB in fp32). The versions take turns; ratios are between runs of one turn. Gradients are
compared entry by entry, in fp32.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._results import Criteria, Figure, Row, measured, ratios, spread
from benchmarks._run import Asked, Benchmark, in_process, main, status_bytes

VOCABULARY, WIDTH = 151_936, 1_024
DEFAULT = 1024  # of `chosen_logprobs`
PIECES = (256, 1024, 4096)
BIN_TOKENS = 16_384


def version(piece: int) -> str:
    """Returns the name of a version: tiles of so many tokens, or the whole matrix (0)."""
    return f"{piece} tokens" if piece else "whole matrix"


CRITERIA: Criteria = {
    "extra memory at most 1/8 of the whole matrix's": lambda t: t(version(DEFAULT), "memory ratio") <= 1 / 8,
    "time at most 1.3 times the whole matrix's": lambda t: t(version(DEFAULT), "time ratio") <= 1.3,
    "loss and gradients equal to 1e-5": lambda t: all(
        t(version(DEFAULT), f"difference of {name}") <= 1e-5 for name in ("loss", "hidden", "weight")
    ),
    "packed batches at least 99 % full": lambda t: t("packing", "fill") >= 0.99,
}
"""Of the tile that a run uses by default."""


def problem(tokens: int, dtype: Any) -> tuple[Any, Any, Any]:
    """Returns hidden states, output layer and targets, the same ones in every process."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    hidden = torch.randn(tokens, WIDTH, device=device, dtype=dtype).requires_grad_()
    weight = (torch.randn(VOCABULARY, WIDTH, device=device, dtype=dtype) * 0.03).requires_grad_()
    return hidden, weight, torch.randint(0, VOCABULARY, (tokens,), device=device)


def loss_of(piece_tokens: int, hidden: Any, weight: Any, targets: Any) -> Any:
    """Returns the mean negative log-probability of the targets; 0 takes the whole matrix."""
    from pipeline.training.logprobs import chosen_logprobs

    if piece_tokens:
        logprobs = chosen_logprobs(hidden, weight, targets, piece_tokens=piece_tokens)
    else:
        table = (hidden @ weight.T).float().log_softmax(1)
        logprobs = table.gather(1, targets[:, None])[:, 0]
    return -logprobs.mean()


def measure_one(piece_tokens: int, tokens: int) -> dict[str, float]:
    """Returns seconds and extra bytes of loss and gradient of one version."""
    import torch

    on_gpu = torch.cuda.is_available()
    hidden, weight, targets = problem(tokens, torch.bfloat16 if on_gpu else torch.float32)
    warm = torch.randn(64, 64, device=hidden.device, dtype=hidden.dtype)
    (warm @ warm).sum().item()  # libraries make their buffers now
    before = reset_peak(on_gpu)
    started = time.perf_counter()
    loss_of(piece_tokens, hidden, weight, targets).backward()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() if on_gpu else status_bytes("VmHWM")
    return {"seconds": seconds, "extra_bytes": peak - before}


def reset_peak(on_gpu: bool) -> int:
    """Returns the memory in use, and starts a new peak from it."""
    if on_gpu:
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is resident
    return status_bytes("VmRSS")


def compare(tokens: int) -> dict[str, dict[str, float]]:
    """Returns piece -> relative differences of loss and gradients from the whole matrix's, in fp32.

    Of a gradient: the norm of the difference over the norm.
    """
    import torch

    found = {}
    for piece in (0, *PIECES):
        hidden, weight, targets = problem(tokens, torch.float32)
        loss = loss_of(piece, hidden, weight, targets)
        loss.backward()
        found[piece] = loss.detach(), hidden.grad, weight.grad
    return {
        str(piece): {
            name: float((mine - whole).norm() / whole.norm())
            for name, mine, whole in zip(("loss", "hidden", "weight"), found[piece], found[0], strict=True)
        }
        for piece in PIECES
    }


def fill(seed: int = 0) -> float:
    """Returns the share of useful tokens in packed bins of 16,384, for 2,000 rows of skewed lengths."""
    import numpy as np

    from pipeline.training.packing import bins_of

    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(6.5, 0.8, 2000).astype(int) + 1, 4096).tolist()
    return sum(lengths) / (BIN_TOKENS * len(bins_of(lengths, BIN_TOKENS)))


def rows_of(
    runs: Mapping[int, Sequence[Mapping[str, float]]],
    differences: Mapping[str, Mapping[str, float]],
) -> list[Row]:
    """Returns each version's medians, ratios to the whole matrix (piece 0), and differences from it."""
    columns = {
        piece: {key: [run[key] for run in found] for key in ("seconds", "extra_bytes")}
        for piece, found in runs.items()
    }
    rows = []
    for piece, mine in columns.items():
        figures: dict[str, Figure] = {
            "extra GiB": spread([size / 2**30 for size in mine["extra_bytes"]]),
            "seconds": spread(mine["seconds"]),
            "memory ratio": ratios(mine["extra_bytes"], columns[0]["extra_bytes"]),
            "time ratio": ratios(mine["seconds"], columns[0]["seconds"]),
            **{f"difference of {name}": gap for name, gap in differences.get(str(piece), {}).items()},
        }
        rows += measured(version(piece), figures, len(runs[piece]))
    return rows


def measure(asked: Asked) -> list[Row]:
    """Returns the rows of all versions, which run in turns, and the fill of packed batches."""
    tokens = asked.options.tokens
    runs: dict[int, list[dict[str, float]]] = {piece: [] for piece in (0, *PIECES)}
    for _ in range(asked.options.repeats):
        for piece, found in runs.items():
            found.append(in_process("benchmarks.logprob_memory", f"{piece} {tokens}"))
    differences = in_process("benchmarks.logprob_memory", f"compare {tokens}")
    return rows_of(runs, differences) + measured("packing", {"fill": fill()})


BENCHMARK = Benchmark("logprob_memory", __doc__, measure, CRITERIA, options={"tokens": 4096, "repeats": 5})

if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:  # in a process of its own
        asked_for, size = sys.argv[2].split()
        made = compare(int(size)) if asked_for == "compare" else measure_one(int(asked_for), int(size))
        print(json.dumps(made))
    else:
        sys.exit(main(BENCHMARK))
