"""One vLLM engine in a process of its own: the only file that imports vllm."""

import contextlib
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Literal

from pipeline.engines.protocol import Generation, GenerationRequest
from pipeline.engines.vllm_options import BLOCK_SIZE, STEP, VllmOptions
from pipeline.processes.failpoints import failpoint
from pipeline.processes.life import sign_of_life
from pipeline.processes.shared_weights import Layout, read_shared
from pipeline.processes.worker import connect_to_parent

CPU_BATCH_TOKENS = 4096
"""Tokens of a pass on a CPU, at least."""
GPU_BATCH_TOKENS = 8192
"""Tokens of a pass on a GPU, as `vllm.LLM` has on most.

This way of starting the engine has 2,048 by default, which cuts prompts into four times as many passes.
"""


class WeightReceiver:
    """Mixed into vLLM's worker: calls its `reload_weights` with weights of another process."""

    reload_weights: Any

    def receive_weights(self, source: Layout | str) -> None:
        """Replaces the model's weights by those in shared memory, or in a folder."""
        if isinstance(source, str):
            self.reload_weights(weights_path=source)
        else:
            self.reload_weights(weights_iterator=read_shared(source))


def make_engine(folder: str, max_length: int, max_live: int, options: VllmOptions) -> Any:
    """Returns vLLM's engine for token ids in and out, with log-probabilities after temperature."""
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    where = options_of_gpus if torch.cuda.is_available() else options_of_cpus
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=folder,
            dtype=options.dtype,
            max_model_len=max_length,
            max_num_seqs=max_live,
            tensor_parallel_size=options.tensor_parallel,
            block_size=BLOCK_SIZE,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            skip_tokenizer_init=True,
            generation_config="vllm",  # the model folder's own sampling defaults must not creep in
            hf_overrides={"head_dtype": "float32"},  # log-probabilities as the trainer has them
            enforce_eager=options.eager,
            worker_extension_cls=f"{__package__}.vllm_replica.WeightReceiver",
            disable_log_stats=True,
            seed=0,
            **where(max_length, max_live, options),
        )
    )


def options_of_gpus(max_length: int, max_live: int, options: VllmOptions) -> dict[str, Any]:
    """Returns what vLLM is told of memory and passes on GPUs; a pass has room for every sequence's token."""
    return {
        "gpu_memory_utilization": options.memory_share,
        "enable_sleep_mode": True,
        "max_num_batched_tokens": max(max_live, GPU_BATCH_TOKENS),
    }


def options_of_cpus(max_length: int, max_live: int, options: VllmOptions) -> dict[str, Any]:
    """Returns what vLLM is told of memory and passes on CPUs."""
    return {
        "kv_cache_memory_bytes": int(options.kv_cache_gib * 2**30),
        # A prompt cut in two makes vLLM 0.32 take back a draw, and a CPU's generator cannot.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(max_length, CPU_BATCH_TOKENS),
    }


def send_all(connection: Connection, messages: SimpleQueue[Any]) -> None:
    """Sends messages as they come; in a thread of its own, so that the replica never waits.

    A parent reads nothing while it hands over a long batch of requests. A replica that waited for it to read
    results would not read the batch either, and a pipe holds only some 200 KB: both would wait for ever.
    """
    with contextlib.suppress(OSError):  # the parent has hung up: the replica's next `recv` says so
        while True:
            connection.send(messages.get())


class Replica:
    """Serves one parent: takes its messages between two steps of the engine, sends what has finished."""

    def __init__(self, connection: Connection, engine: Any) -> None:
        self._connection = connection
        self._engine = engine
        self._stops: dict[str, tuple[int, ...]] = {}  # of the requests in flight
        self._answers: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=send_all, args=(connection, self._answers), daemon=True).start()

    def run(self) -> None:
        """Works until the parent hangs up."""
        while True:
            while not self._stops or self._connection.poll():
                self._hear(*self._connection.recv())
            failpoint("replica.step")
            if finished := [output for output in self._engine.step() if output.finished]:
                self._answers.put([self._generation(output) for output in finished])
            sign_of_life(STEP)

    def _hear(self, kind: str, content: Any) -> None:
        failpoint(f"replica.{kind}")
        if kind == "submit":
            for request in content:
                self._add(request)
        elif kind == "sleep":
            self._engine.sleep(level=2)  # level 1 would park weights in host memory, where they are already
            self._answers.put(("asleep",))
        else:  # load
            asleep = self._engine.is_sleeping()
            if asleep:  # the cache wakes last: beside it and the old weights the new ones may find no room
                self._engine.wake_up(tags=["weights"])
            self._engine.collective_rpc("receive_weights", args=(content,))
            if asleep:
                self._engine.wake_up(tags=["kv_cache"])
            if not self._engine.reset_prefix_cache():
                raise RuntimeError("vLLM kept its prefix cache although nothing is in flight")
            self._answers.put(("loaded",))

    def _add(self, request: GenerationRequest) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._stops[request.request_id] = request.stop_token_ids
        self._engine.add_request(
            request.request_id,
            {"prompt_token_ids": list(request.prompt_token_ids)},
            SamplingParams(
                seed=request.seed,
                max_tokens=request.max_new_tokens,
                stop_token_ids=list(request.stop_token_ids),
                temperature=request.temperature,
                logprobs=0,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            ),
        )

    def _generation(self, output: Any) -> Generation:
        completion = output.outputs[0]
        token_ids = list(completion.token_ids)
        logprobs = [
            float(table[token].logprob) for token, table in zip(token_ids, completion.logprobs, strict=True)
        ]
        stops = self._stops.pop(output.request_id)
        reason: Literal["stop", "length"] = "stop" if token_ids[-1] in stops else "length"
        return Generation(output.request_id, token_ids, logprobs, reason, output.num_cached_tokens or 0)


def main() -> None:
    """Makes the engine that the parent describes, says so, and serves until the parent hangs up."""
    connection = connect_to_parent()
    try:
        engine = make_engine(*connection.recv())
        connection.send(("ready",))
        Replica(connection, engine).run()
    except EOFError:
        sys.exit(0)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
