"""vLLM's own `LLM.generate` in a process of its own: the peer of this project's queue before vLLM."""

from __future__ import annotations

import time
from typing import Any

from pipeline.processes.worker import connect_to_parent


def main() -> None:
    """Makes an LLM as the parent describes, then generates what it is sent and says how long it took."""
    connection = connect_to_parent()
    from vllm import LLM, SamplingParams

    options: dict[str, Any] = connection.recv()
    llm = LLM(**options)
    connection.send("ready")
    while True:
        try:
            prompts, new_tokens = connection.recv()
        except EOFError:
            return
        llm.reset_prefix_cache()
        wishes = [
            SamplingParams(
                seed=seed,
                max_tokens=new_tokens,
                temperature=1.0,
                logprobs=0,
                ignore_eos=True,
                detokenize=False,
            )
            for seed in range(len(prompts))
        ]
        started = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], wishes, use_tqdm=False)
        seconds = time.perf_counter() - started
        connection.send((seconds, sum(len(output.outputs[0].token_ids) for output in outputs)))


if __name__ == "__main__":
    main()
