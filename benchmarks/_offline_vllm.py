"""vLLM's own `LLM.generate` in a process of its own: the peer of this project's queue before vLLM."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks._run import ROOT
from pipeline.engines.vllm_options import BLOCK_SIZE, VllmOptions
from pipeline.engines.vllm_replica import CPU_BATCH_TOKENS
from pipeline.processes.worker import Worker, connect_to_parent
from stages.settings import Config


def offline_options(folder: Path, config: Config, max_length: int) -> dict[str, Any]:
    """Returns the arguments of vLLM's LLM that correspond to those of the engine."""
    engine = config.engine
    assert engine.kind == "vllm"
    return {
        "model": str(folder),
        "dtype": engine.dtype,
        "max_model_len": min(max_length, config.row_tokens),
        "max_num_seqs": engine.max_live,
        "block_size": BLOCK_SIZE,
        "kv_cache_memory_bytes": int(VllmOptions().kv_cache_gib * 2**30),
        "enable_prefix_caching": True,
        "enable_chunked_prefill": False,  # as the replica has it on a CPU, and for its reason
        "max_num_batched_tokens": max(max_length, CPU_BATCH_TOKENS),
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "enforce_eager": engine.eager,
        "disable_log_stats": True,
        "seed": 0,
    }


def start_offline(options: Mapping[str, Any]) -> Worker:
    """Returns a process with vLLM's LLM in it that is ready."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    quiet = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    worker = Worker(
        "benchmarks._offline_vllm", "LLM.generate", env={**quiet, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    )
    worker.send(dict(options))
    worker.receive(600)
    return worker


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
