"""A model folder behind vLLM's server, as a user starts it."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

FEEDBACK_PAGE = Path(__file__).parents[1] / "docs" / "feedback.md"
PATIENCE = 600.0  # seconds until a server that does not answer has failed


@contextmanager
def served(folder: Path) -> Iterator[Any]:
    """Yields an HTTP client of a server, which computes in fp32; ends the server with the block.

    Started as README.md says for the wheel for CPUs. It listens on a socket file: ports may be taken.
    """
    httpx = pytest.importorskip("httpx")
    with tempfile.TemporaryDirectory() as place:
        path, log = Path(place) / "vllm.sock", Path(place) / "log"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        command += ["--uds", str(path), "--dtype", "float32", "--enforce-eager"]
        command += ["--max-num-seqs", "4", "--kv-cache-memory-bytes", str(2**29)]
        with _started(command, log) as (process, _):
            _wait_for(str(path), process, log)
            transport = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(transport=transport, base_url="http://vllm", timeout=PATIENCE) as client:
                assert client.get("/health").status_code == 200
                yield client


@contextmanager
def writes_feedback(folder: Path) -> Iterator[str]:
    """Yields the address of a server for feedback, started as docs/feedback.md says, at a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    [line] = [line for line in FEEDBACK_PAGE.read_text("utf-8").splitlines() if "api_server" in line]
    words = shlex.split(line.replace("models/SmolLM2-135M-Instruct", str(folder)))
    command = [sys.executable, *words[1:], "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryDirectory() as place, _started(command, Path(place) / "log") as (process, log):
        _wait_for(("127.0.0.1", port), process, log)
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def _started(command: Sequence[str], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_WAIT_POLICY": "passive"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process, log
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):  # to the server and its engine: one session
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)


def _wait_for(place: str | tuple[str, int], process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns once somebody listens at a socket file or a port; fails when the server ends first."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET) as probe:
            if probe.connect_ex(place) == 0:
                return
        words = log.read_text("utf-8", "replace")[-3000:]
        assert process.poll() is None, f"the server ended with {process.returncode}:\n{words}"
        assert time.monotonic() < deadline, f"nobody listens after {PATIENCE} s:\n{words}"
        time.sleep(1)


def assert_serves(client: Any, model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """Checks a greedy answer in a chat against the model's own; returns its text."""
    [name] = [entry["id"] for entry in client.get("/v1/models").json()["data"]]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    expected = _greedy(model, prompt, number=24, stop=model.generation_config.eos_token_id)
    asked = {"model": name, "temperature": 0, "max_tokens": 24, "return_token_ids": True}
    answer = client.post("/v1/chat/completions", json={**asked, "messages": messages}).json()
    [choice] = answer["choices"]
    assert answer["prompt_token_ids"] == prompt  # the server fills in the template that we trained in
    assert choice["token_ids"] == expected
    stopped = expected[-1] == model.generation_config.eos_token_id
    assert choice["finish_reason"] == ("stop" if stopped else "length")
    return str(choice["message"]["content"])


def _greedy(model: Any, prompt: list[int], number: int, stop: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < number and stop not in tokens:
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return tokens
