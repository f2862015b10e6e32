"""Do engines and trainer see the same tokens, with the same log-probabilities? How much is reused?

    python -m benchmarks.engines        # minutes on two CPU cores; needs make setup-engines

A policy of the demo's size is made first, in a temporary folder. Then, on multi-turn phone episodes:

- agreement: log-probabilities of both engines against the trainer's on whole rollouts; every turn's
  prompt and message against the row that the trainer is given; greedy messages of one engine against the
  other's;
- reuse: of the prompt tokens that vLLM could take from its prefix cache, how many it did. Cacheable are
  the full blocks of the longest prefix already sent, a prompt's last token excepted, which is always
  computed.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks._engines import Bench, Recorder, SentPrefixes, ask_all, policy_in, prepared
from benchmarks._results import Criteria, Row, at_least, measured
from benchmarks._run import Asked, Benchmark, main
from pipeline.engines import GenerationRequest
from pipeline.engines.vllm_options import BLOCK_SIZE
from pipeline.types import Rollout

TIE = 1e-4
"""Nats between two tokens that rounding may put in either order; the limit of the log-probabilities too."""
LATER = ("later turns", "later attempts")
KINDS = ("transformers", "vllm")


CRITERIA: Criteria = {
    "multi-turn: at least half of the rollouts have replies of a tool": lambda t: all(
        t(kind, "multi-turn share") >= 0.5 for kind in KINDS
    ),
    "log-probabilities: engines and trainer within 1e-4": lambda t: all(
        t(kind, "largest gap") <= TIE for kind in KINDS
    ),
    "drift: no token of a trainer's row differs from what the engine saw and sampled": lambda t: all(
        t(kind, "drifted tokens") == 0 and t(kind, "turns checked") > 0 for kind in KINDS
    ),
    "greedy: messages are equal but for ties": lambda t: not t("greedy", "largest gap where they part") > TIE,
    **{f"prefix cache: {group} reuse at least 90 %": at_least(0.9, group, "share reused") for group in LATER},
}


def group_of(request_id: str, attempts: Mapping[str, int]) -> str:
    """Returns the group of a request `<rollout id>:<turn>`, given each rollout's attempt."""
    rollout_id, _, turn = request_id.rpartition(":")
    if int(turn) > 0:
        return LATER[0]
    return LATER[1] if attempts[rollout_id] > 0 else "first turns of first attempts"


def reuse(recorder: Recorder, attempts: Mapping[str, int]) -> list[Row]:
    """Returns for each group of requests prompt tokens, cacheable ones, and the share of these reused.

    Reused beyond what was counted as cacheable does not count: an answer still under way may already be in
    the cache.
    """
    found: dict[str, list[int]] = {}
    for name, possible in recorder.cacheable.items():
        entry = found.setdefault(group_of(name, attempts), [0, 0, 0, 0])
        cached = recorder.generations[name].cached_tokens
        size = len(recorder.requests[name].prompt_token_ids)
        entry[:] = [a + b for a, b in zip(entry, (1, size, possible, min(possible, cached)), strict=True)]
    rows = []
    for group, (requests, size, possible, reused) in found.items():
        share = reused / possible if possible else None
        figures = {"prompt tokens": size, "cacheable": possible, "share reused": share}
        rows += measured(group, figures, requests)
    return rows


def drifted_tokens(rollout: Rollout, row: Sequence[int], recorder: Recorder) -> tuple[int, int]:
    """Returns (turns, tokens that differ) between a trainer's row and what the engine saw and sampled."""
    prompt = len(rollout.prompt_token_ids)
    wrong = 0
    for step in rollout.steps:
        name = f"{rollout.rollout_id}:{step.step_index}"
        seen = [*recorder.requests[name].prompt_token_ids, *recorder.generations[name].token_ids]
        told = row[: prompt + step.token_end]
        wrong += abs(len(seen) - len(told)) + sum(a != b for a, b in zip(seen, told, strict=False))
        wrong += len(recorder.requests[name].prompt_token_ids) != prompt + step.token_start
    if rollout.steps:
        wrong += abs(len(row) - prompt - rollout.steps[-1].token_end)  # what no engine saw
    return len(rollout.steps), wrong


def agreement(bench: Bench, kind: str, recorder: Recorder) -> tuple[list[Row], list[Rollout]]:
    """Returns how far an engine's rollouts are from the trainer's view of them, and the rollouts."""
    from pipeline.training.rows import policy_rows
    from pipeline.training.torch import TorchTrainer

    rollouts = bench.play(kind, iteration=0, engine=recorder)
    rows = policy_rows(rollouts, [np.zeros(len(rollout.steps)) for rollout in rollouts])
    policy = policy_in(bench.folder)
    trainer = TorchTrainer(policy.model, head="policy", micro_batch_tokens=4096)
    gaps, turns, drifted, respelt = [], 0, 0, 0
    for rollout, row, output in zip(rollouts, rows, trainer.forward(rows), strict=True):
        trained = row.columns["weight"] != 0
        gaps.append(np.abs(output["logprobs"] - row.columns["engine_logprobs"])[trained])
        checked, wrong = drifted_tokens(rollout, row.token_ids.tolist(), recorder)
        turns, drifted = turns + checked, drifted + wrong
        response = list(rollout.response_token_ids)
        text = policy.tokenizer.decode(response, skip_special_tokens=False)
        respelt += policy.tokenizer.encode(text, add_special_tokens=False) != response
    together = np.concatenate(gaps)
    figures = {
        "multi-turn share": sum(len(rollout.steps) > 1 for rollout in rollouts) / len(rollouts),
        "tokens compared": len(together),
        "largest gap": float(together.max()),
        "mean gap": float(together.mean()),
        "turns checked": turns,
        "drifted tokens": drifted,
        "rollouts that decoding and encoding would change": respelt,
    }
    return measured(kind, figures, len(rollouts)), rollouts


def greedy_agreement(bench: Bench, requests: Sequence[GenerationRequest]) -> list[Row]:
    """Returns the share of equal greedy messages of both engines, and how near the others part.

    Where two messages part, rounding may have put two tokens of equal probability in either order. The gap
    is the difference of these two tokens' log-probabilities, by the trainer.
    """
    from pipeline.training import TrainingRow
    from pipeline.training.torch import TorchTrainer

    greedy = [replace(request, temperature=0.0, cache_key=None) for request in requests]
    ours, theirs = (ask_all(bench.players[kind].engine, greedy) for kind in KINDS)
    trainer = TorchTrainer(policy_in(bench.folder).model, head="policy")
    gaps = []
    for request in greedy:
        left, right = ours[request.request_id].token_ids, theirs[request.request_id].token_ids
        if left == right:
            continue
        differ = (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
        same = next(differ, min(len(left), len(right)))
        rows = [
            TrainingRow(np.array([*request.prompt_token_ids, *found[: same + 1]], np.int32), {})
            for found in (left, right)
        ]
        first, second = (output["logprobs"][-1] for output in trainer.forward(rows))
        gaps.append(abs(float(first - second)))
    figures = {
        "identical share": 1 - len(gaps) / len(greedy),
        "largest gap where they part": max(gaps, default=0.0),
    }
    return measured("greedy", figures, len(greedy))


def measure(asked: Asked) -> list[Row]:
    """Returns agreement of both engines, reuse of vLLM's prefix cache, and greedy agreement."""
    with prepared(asked) as bench:
        sent = SentPrefixes(BLOCK_SIZE)
        recorders = {
            "transformers": Recorder(bench.players["transformers"].engine),
            "vllm": Recorder(bench.players["vllm"].engine, sent),
        }
        rows: list[Row] = []
        for kind, recorder in recorders.items():
            found, rollouts = agreement(bench, kind, recorder)
            rows += found
        rows += reuse(recorders["vllm"], {rollout.rollout_id: rollout.attempt for rollout in rollouts})
        requests = list(recorders["vllm"].requests.values())
        return rows + greedy_agreement(bench, requests[:: max(1, len(requests) // 500)])


BENCHMARK = Benchmark("engines", __doc__, measure, CRITERIA, options={"tasks": 96})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
