"""Log-probabilities in tiles against the whole matrix of logits: memory, time, equality; packing fill.

    python benchmarks/logprob_memory.py            # 4,096 tokens on a CPU, 16,384 on a GPU

Vocabulary 151,936 and width 1,024, as Qwen3-0.6B has. Each measurement is a process of its own: loss and
gradient, and the peak of memory above what the inputs take. Counted are all intermediates and both
gradients, of which that of the weight alone takes 0.58 GiB in fp32 in every version. The versions take
turns; medians of all repeats are shown, ratios are between runs of one turn. Both gradients are also
compared entry by entry, in fp32.
Results: benchmarks/results/logprob_memory.json. Exits 1 if a criterion fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measuring import RESULTS, conclude, ratios, spread, status_bytes
from benchmarks.demo_seeds import machine_facts
from stages.settings import Training

VOCABULARY, WIDTH = 151_936, 1_024
DEFAULT = Training().piece_tokens
PIECES = (256, 1024, 4096)
REPEATS = 5
BIN_TOKENS = 16_384


def default_row(results: Any) -> dict[str, Any]:
    """Returns the row of the tiles that a run uses unless told otherwise."""
    return next(row for row in results["rows"] if row["piece_tokens"] == DEFAULT)


CRITERIA = {
    "extra memory at most 1/8 of the whole matrix's": lambda r: (
        default_row(r)["memory_ratio"]["median"] <= 1 / 8
    ),
    "time at most 1.3 times the whole matrix's": lambda r: default_row(r)["time_ratio"]["median"] <= 1.3,
    "loss and gradients equal to 1e-5": lambda r: all(
        number <= 1e-5 for number in default_row(r)["difference"].values()
    ),
    "packed batches at least 99 % full": lambda r: r["packing_fill"] >= 0.99,
}
"""What must be shown, of the default tile."""


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
        logprobs, _ = chosen_logprobs(hidden, weight, targets, piece_tokens=piece_tokens)
    else:
        table = (hidden @ weight.T).float().log_softmax(1)
        logprobs = table.gather(1, targets[:, None])[:, 0]
    return -logprobs.mean()


def measure(piece_tokens: int, tokens: int) -> dict[str, float]:
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

    from pipeline.training.rows import bins_of

    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(6.5, 0.8, 2000).astype(int) + 1, 4096).tolist()
    return sum(lengths) / (BIN_TOKENS * len(bins_of(lengths, BIN_TOKENS)))


def in_process(tokens: int, *argv: str) -> Any:
    """Returns what this file prints when it runs as a process of its own."""
    command = [sys.executable, __file__, "--tokens", str(tokens), *argv]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def table_rows(
    runs: dict[int, list[dict[str, float]]], differences: dict[str, dict[str, float]]
) -> list[dict[str, Any]]:
    """Returns a row for each version: medians, ratios to the whole matrix (piece 0), differences from it."""
    columns = {
        piece: {key: [run[key] for run in found] for key in ("seconds", "extra_bytes")}
        for piece, found in runs.items()
    }
    return [
        {
            "piece_tokens": piece or None,
            "extra_gib": spread([size / 2**30 for size in mine["extra_bytes"]]),
            "seconds": spread(mine["seconds"]),
            "memory_ratio": ratios(mine["extra_bytes"], columns[0]["extra_bytes"]),
            "time_ratio": ratios(mine["seconds"], columns[0]["seconds"]),
            "difference": differences.get(str(piece), {}),
        }
        for piece, mine in columns.items()
    ]


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Prints a line for each version."""
    head = f"{'version':<18}{'extra memory':>14}{'of whole':>10}{'seconds':>9}{'of whole (spread)':>22}"
    print(f"{head}{'difference':>12}")
    for row in rows:
        name = "whole matrix" if row["piece_tokens"] is None else f"{row['piece_tokens']} tokens a tile"
        time_ratio = row["time_ratio"]
        print(
            f"{name:<18}{row['extra_gib']['median']:>10.2f} GiB{row['memory_ratio']['median']:>10.3f}"
            f"{row['seconds']['median']:>9.2f}{time_ratio['median']:>8.2f} "
            f"[{time_ratio['min']:.2f}, {time_ratio['max']:.2f}]"
            f"{max(row['difference'].values(), default=0.0):>12.1e}"
        )


def main() -> int:
    """Runs every version in turn, prints the table, writes the results; returns 1 if a criterion fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, help="tokens of the batch")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--results", type=Path, default=RESULTS / "logprob_memory.json")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--compare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    import torch

    from pipeline.training.logprobs import TILE_ENTRIES

    on_gpu = torch.cuda.is_available()
    tokens = options.tokens or (16_384 if on_gpu else 4_096)
    if options.one is not None or options.compare:
        print(json.dumps(compare(tokens) if options.compare else measure(options.one, tokens)))
        return 0
    runs: dict[int, list[dict[str, float]]] = {piece: [] for piece in (0, *PIECES)}
    for _ in range(options.repeats):
        for piece, found in runs.items():
            found.append(in_process(tokens, "--one", str(piece)))
    results = {
        "machine": machine_facts() | {"device": torch.cuda.get_device_name() if on_gpu else "cpu"},
        "tokens": tokens,
        "vocabulary": VOCABULARY,
        "width": WIDTH,
        "dtype": "bfloat16" if on_gpu else "float32",
        "entries_of_a_tile": TILE_ENTRIES,
        "default_piece_tokens": DEFAULT,
        "repeats": options.repeats,
        "rows": table_rows(runs, in_process(tokens, "--compare")),
        "packing_fill": fill(),
    }
    print(f"{tokens:,} tokens, vocabulary {VOCABULARY:,}, width {WIDTH:,}, torch {torch.__version__}")
    print_table(results["rows"])
    print(f"packed batches of 2,000 skewed rows: {results['packing_fill']:.2%} full")
    return conclude(options.results, results, CRITERIA)


if __name__ == "__main__":
    sys.exit(main())
