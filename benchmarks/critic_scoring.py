"""All steps of a rollout scored in one causal pass against prefix by prefix: equality and time.

    python -m benchmarks.critic_scoring                                         # the demo's critic size
    python -m benchmarks.critic_scoring --layers 28 --width 1024 --rollouts 4   # near Qwen3-0.6B

Random weights, on a CPU or a GPU. Rollouts of 4, 8, 16 and 32 steps of equal length behind one prompt.
Both ways use the same packed forward pass and read-out; prefixes of a rollout share their micro-batches.
The ways take turns; ratios are between runs of one turn. One rollout is also compared with Hugging Face's
sequence classifier.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._results import Criteria, Figure, Row, measured, ratios, spread
from benchmarks._run import Asked, Benchmark, main

STEPS = (4, 8, 16, 32)
PROMPT, STEP_TOKENS = 120, 40
CRITERIA: Criteria = {
    "values equal to 1e-5 at every number of steps": lambda t: all(
        t(f"{steps} steps", "difference") <= 1e-5 for steps in STEPS
    ),
    "equal to Hugging Face's classifier to 1e-5": lambda t: t("classifier", "difference") <= 1e-5,
    "16 steps at least 7 times faster in one pass": lambda t: t("16 steps", "speedup") >= 7,
}


def make_model(width: int, layers: int, vocabulary: int, folder: Path) -> Any:
    """Returns a critic with random weights, head included."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from critics.frozen.model import make_critic

    disable_progress_bar()
    torch.manual_seed(0)
    heads = max(2, width // 64)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=width // heads,
        intermediate_size=3 * width,
        max_position_embeddings=8192,
        initializer_range=0.05,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    model = make_critic(folder)
    with torch.no_grad():
        model.score.weight.normal_(std=width**-0.5)  # z of order 1, as a fitted critic's
    from pipeline.training.attention import ATTENTION_NAME

    model.set_attn_implementation(ATTENTION_NAME)
    return model


def rows_and_places(
    num_steps: int, num_rollouts: int, vocabulary: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns token ids of the rollouts, and where their states are read."""
    rng = np.random.default_rng(num_steps)
    size = PROMPT + num_steps * STEP_TOKENS
    rows = [rng.integers(2, vocabulary, size).astype(np.int32) for _ in range(num_rollouts)]
    return rows, PROMPT - 1 + STEP_TOKENS * np.arange(num_steps)


def one_pass(model: Any, rows: list[np.ndarray], at: np.ndarray, budget: int) -> np.ndarray:
    """Returns z [R, T] read in one causal pass over each rollout."""
    from critics.frozen.critic import read_value_logits
    from pipeline.training import TrainingRow

    return np.stack(read_value_logits(model, [TrainingRow(row) for row in rows], [at] * len(rows), budget))


def by_prefix(model: Any, rows: list[np.ndarray], at: np.ndarray, budget: int) -> np.ndarray:
    """Returns z [R, T] of as many passes as there are states, each over its prefix alone."""
    from critics.frozen.critic import read_value_logits
    from pipeline.training import TrainingRow

    prefixes = [TrainingRow(row[: place + 1]) for row in rows for place in at]
    last = [np.array([len(prefix.token_ids) - 1]) for prefix in prefixes]
    return np.concatenate(read_value_logits(model, prefixes, last, budget)).reshape(len(rows), len(at))


def classifier_difference(model: Any, folder: Path, row: np.ndarray, at: np.ndarray, budget: int) -> float:
    """Returns the largest difference to Hugging Face's classifier over the prefixes of one rollout."""
    import torch
    from transformers import AutoModelForSequenceClassification

    model.save_pretrained(folder)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    ours = one_pass(model, [row], at, budget)[0]
    with torch.inference_mode():
        theirs = [float(classifier(torch.tensor(row[None, : p + 1]).long()).logits[0, 0]) for p in at]
    return float(np.abs(ours - theirs).max())


def measure(asked: Asked) -> list[Row]:
    """Returns seconds of both ways, speedup and difference for each number of steps."""
    import torch

    options = asked.options
    device, budget = "cuda" if torch.cuda.is_available() else "cpu", options.micro_batch_tokens
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(options.width, options.layers, options.vocabulary, Path(folder) / "trunk")
        row, at = rows_and_places(16, 1, options.vocabulary)
        gap = classifier_difference(model, Path(folder) / "critic", row[0], at, budget)
    model = model.to(device)
    found = measured("classifier", {"difference": gap})
    for num_steps in STEPS:
        rows, at = rows_and_places(num_steps, options.rollouts, options.vocabulary)
        seconds: dict[str, list[float]] = {"one pass": [], "by prefix": []}
        values: dict[str, np.ndarray] = {}
        for turn in range(options.repeats + 1):
            for name, score in (("one pass", one_pass), ("by prefix", by_prefix)):
                began = time.perf_counter()
                values[name] = score(model, rows, at, budget)
                if turn:  # the first turn warms up
                    seconds[name].append(time.perf_counter() - began)
        figures: dict[str, Figure] = {
            **{f"seconds {name}": spread(numbers) for name, numbers in seconds.items()},
            "speedup": ratios(seconds["by prefix"], seconds["one pass"]),
            "difference": float(np.abs(values["one pass"] - values["by prefix"]).max()),
        }
        found += measured(f"{num_steps} steps", figures, options.repeats)
    return found


OPTIONS = {
    "width": 128,
    "layers": 4,
    "vocabulary": 768,
    "rollouts": 16,
    "micro_batch_tokens": 16384,
    "repeats": 5,
}
BENCHMARK = Benchmark("critic_scoring", __doc__, measure, CRITERIA, options=OPTIONS)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
