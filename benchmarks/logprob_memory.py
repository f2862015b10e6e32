"""Memory and time of log-probabilities in pieces against the whole matrix of logits; fill of packed batches.

    python benchmarks/logprob_memory.py            # 4,096 tokens on a CPU, 16,384 on a GPU

Vocabulary 151,936 and width 1,024, as Qwen3-0.6B has. Each measurement is a process of its own: loss and
gradient, peak memory above the inputs. The versions alternate, five times each; medians are shown.
Results: benchmarks/results/logprob_memory.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

RESULTS = Path(__file__).resolve().parent / "results" / "logprob_memory.json"
VOCABULARY, WIDTH = 151_936, 1_024
PIECES = (128, 256, 512, 1024)
REPEATS = 5


def measure(piece_tokens: int, tokens: int) -> dict[str, float]:
    """Returns seconds, extra bytes, loss and gradient norms of one version; 0 is the whole matrix."""
    import torch

    from pipeline.logprobs import chosen_logprobs

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    hidden = torch.randn(tokens, WIDTH, device=device, dtype=dtype).requires_grad_()
    weight = (torch.randn(VOCABULARY, WIDTH, device=device, dtype=dtype) * 0.03).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (tokens,), device=device)
    warm = torch.randn(64, 64, device=device)
    (warm @ warm).sum().item()  # libraries make their buffers now
    before = reset_peak(device)
    started = time.perf_counter()
    if piece_tokens:
        logprobs, _ = chosen_logprobs(hidden, weight, targets, piece_tokens=piece_tokens)
    else:
        table = (hidden @ weight.T).float().log_softmax(1)
        logprobs = table.gather(1, targets[:, None])[:, 0]
    loss = -logprobs.mean()
    loss.backward()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    assert hidden.grad is not None
    assert weight.grad is not None
    return {
        "seconds": seconds,
        "extra_bytes": peak(device) - before,
        "loss": loss.item(),
        "hidden_gradient": hidden.grad.double().norm().item(),
        "weight_gradient": weight.grad.double().norm().item(),
        "probe": weight.grad[targets[0]].double().sum().item(),
    }


def reset_peak(device: Any) -> int:
    """Returns the memory in use, and starts a new peak from it."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is resident
    return status("VmRSS")


def peak(device: Any) -> int:
    """Returns the most memory in use since `reset_peak`."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    return status("VmHWM")


def status(field: str) -> int:
    """Returns a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


def fill(seed: int = 0) -> float:
    """Returns the share of useful tokens in packed bins of 16,384, for 2,000 rows of skewed lengths."""
    import numpy as np

    from pipeline.batches import bins_of

    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(6.5, 0.8, 2000).astype(int) + 1, 4096).tolist()
    return sum(lengths) / (16_384 * len(bins_of(lengths, 16_384)))


def main() -> None:
    """Runs every version in turn, prints the table and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, help="tokens of the batch")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    import torch

    tokens = arguments.tokens or (16_384 if torch.cuda.is_available() else 4_096)
    if arguments.one is not None:
        print(json.dumps(measure(arguments.one, tokens)))
        return
    runs: dict[int, list[dict[str, float]]] = {piece: [] for piece in (0, *PIECES)}
    for _ in range(arguments.repeats):
        for piece, found in runs.items():
            command = [sys.executable, __file__, "--one", str(piece), "--tokens", str(tokens)]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    whole = {key: statistics.median(run[key] for run in runs[0]) for key in runs[0][0]}
    rows = []
    for piece, found in runs.items():
        middle = {key: statistics.median(run[key] for run in found) for key in found[0]}
        rows.append(
            {
                "piece_tokens": piece or None,
                "extra_gib": middle["extra_bytes"] / 2**30,
                "seconds": middle["seconds"],
                "memory_ratio": middle["extra_bytes"] / whole["extra_bytes"],
                "time_ratio": middle["seconds"] / whole["seconds"],
                "largest_relative_difference": max(
                    abs(middle[key] - whole[key]) / abs(whole[key])
                    for key in ("loss", "hidden_gradient", "weight_gradient", "probe")
                ),
            }
        )
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.processor()} CPU"
    print(f"{tokens} tokens, vocabulary {VOCABULARY}, width {WIDTH}, {device}, torch {version('torch')}")
    print("version      extra memory   of whole   seconds   of whole   largest difference")
    for row in rows:
        name = "whole" if row["piece_tokens"] is None else f"pieces of {row['piece_tokens']}"
        print(
            f"{name:<15}{row['extra_gib']:>6.2f} GiB{row['memory_ratio']:>11.3f}{row['seconds']:>10.2f}"
            f"{row['time_ratio']:>11.2f}{row['largest_relative_difference']:>21.1e}"
        )
    filled = fill()
    print(f"packed batches of 2,000 skewed rows: {filled:.2%} full")
    RESULTS.write_text(
        json.dumps(
            {
                "device": device,
                "torch": version("torch"),
                "tokens": tokens,
                "rows": rows,
                "packing_fill": filled,
            },
            indent=1,
        )
        + "\n"
    )
    print(f"wrote {RESULTS}")


if __name__ == "__main__":
    main()
