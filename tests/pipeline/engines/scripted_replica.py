"""A replica for tests: the real one, over a stand-in for vLLM that finishes whatever is queued in one step.

What it is to do wrong stands in the environment: FAKE_ROOM, tokens of the longest row that its cache holds;
FAKE_FAULT, "raise" or "kill" in the first step; FAKE_SLOW, tenths of seconds, each of them a step in which
nothing ends; FAKE_STEPS, a file that is written before each step ends.
"""

import os
import signal
import sys
import time
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class LLMEngine:
    def __init__(self, arguments: Any) -> None:
        room = int(os.environ.get("FAKE_ROOM", "1000000"))
        if arguments.max_model_len > room:
            raise ValueError(f"a row of {arguments.max_model_len} tokens is larger than the cache of {room}")
        self._queue: list[Any] = []
        self._slow = int(os.environ.get("FAKE_SLOW", "0"))

    from_engine_args = classmethod(lambda cls, arguments: cls(arguments))

    def add_request(self, request_id: str, prompt: Any, parameters: Any) -> None:
        self._queue.append(finished(request_id, parameters.max_tokens))

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> None:
        assert method == "receive_weights"

    def reset_prefix_cache(self) -> bool:
        return True

    def is_sleeping(self) -> bool:
        return False

    def sleep(self, level: int) -> None:
        assert level == 2

    def step(self) -> list[Any]:
        fault = os.environ.get("FAKE_FAULT")
        if fault == "raise":
            raise RuntimeError("an assertion of the engine")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._slow > 0:
            self._slow -= 1
            time.sleep(0.1)
            return []
        if path := os.environ.get("FAKE_STEPS"):
            Path(path).write_text("stepped")
        queue, self._queue = self._queue, []
        return queue


def finished(request_id: str, number: int) -> Any:
    completion = SimpleNamespace(
        token_ids=[7] * number, logprobs=[{7: SimpleNamespace(logprob=-0.1 - i)} for i in range(number)]
    )
    return SimpleNamespace(request_id=request_id, outputs=[completion], finished=True, num_cached_tokens=0)


# Not for whoever only looks at this file, as pytest does for examples: that process keeps the real vLLM.
if __name__ == "__main__":
    content: dict[str, Any] = {
        "vllm": SimpleNamespace(SamplingParams=SimpleNamespace),
        "vllm.sampling_params": SimpleNamespace(RequestOutputKind=Enum("RequestOutputKind", "FINAL_ONLY")),
        "vllm.engine.arg_utils": SimpleNamespace(EngineArgs=SimpleNamespace),
        "vllm.v1.engine.llm_engine": SimpleNamespace(LLMEngine=LLMEngine),
    }
    sys.modules.update(dict.fromkeys(("vllm.engine", "vllm.v1", "vllm.v1.engine"), SimpleNamespace()))
    sys.modules.update(content)

    from pipeline.engines.vllm_replica import main

    main()
