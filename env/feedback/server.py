"""Feedback by any server that speaks OpenAI's protocol: bounded in time, size, tries and rate.

What fails is an answer with a kind of failure. It never raises, and never becomes a text.
"""

import json
import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import tenacity

from env.feedback.deadline import Deadline
from env.feedback.protocol import Answer, Ask
from env.feedback.store import AnswerStore, RateLimit
from pipeline.engines import Generation, GenerationRequest
from pipeline.ids import digest
from pipeline.processes.life import sign_of_life

MAX_IN_FLIGHT = 16
"""Requests of one process at once."""
MAX_TRIES = 4
SIGN_SECONDS = 30.0
"""Between two signs of life of a player that waits for answers: low rates and long time-outs are no hang."""
MAX_BYTES = 2**20
"""Of a response; 2,000 tokens take some 10 kB."""
BREAKER_FAILURES, BREAKER_SECONDS = 5, 30.0
"""So many asks in a row that failed after all tries; then none is sent for so long."""
_AGAIN = (408, 409, 429)
"""HTTP status codes of a client's fault that another try may mend."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Which server, and how it is asked."""

    url: str  # up to and with /v1
    model: str
    temperature: float = 0.0
    max_tokens: int = 2000
    seed: int = 14
    stop_token_ids: tuple[int, ...] = ()
    timeout_s: float = 60.0  # of one try, until the last byte
    requests_per_minute: float | None = None  # of all processes together
    first_wait_s: float = 1.0  # before the second try at most; doubled for each later one


class CallError(Exception):
    """A try that failed."""

    def __init__(self, kind: str, detail: str, *, may_pass: bool = True) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.may_pass = kind, may_pass


class Breaker:
    """Closed while asks are answered; open for a while after several in a row failed."""

    def __init__(self, failures: int = BREAKER_FAILURES, seconds: float = BREAKER_SECONDS) -> None:
        self._limit, self._seconds = failures, seconds
        self._failures, self._opened, self._kind = 0, 0.0, ""
        self._lock = threading.Lock()

    def open_for(self) -> str:
        """Returns how the server failed if nothing is to be sent now, else ""; one may try after a while."""
        with self._lock:
            is_open = self._failures >= self._limit and time.monotonic() - self._opened < self._seconds
            return self._kind if is_open else ""

    def note(self, failure: str) -> None:
        """Takes in how an ask failed, or "" for an answer."""
        with self._lock:
            self._failures, self._kind = self._failures + 1 if failure else 0, failure
            if self._failures >= self._limit:
                self._opened = time.monotonic()


def refuse_status(response: Any) -> None:
    """Raises CallError for a response that is no success, before its body or another address is read.

    The client itself would read such a body to its end, however long.
    """
    if not response.is_success:
        code = response.status_code
        raise CallError("http_error", f"HTTP {code}", may_pass=code in _AGAIN or code >= 500)


def _of_transport(error: Exception) -> CallError:
    """Returns an error of the HTTP library by its name alone: its words may hold the key."""
    name = type(error.__cause__ or error).__name__
    return CallError("timeout" if "Timeout" in name else "unreachable", name)


class Server:
    """A `Writer`: a server, asked by threads of its own. `folder` keeps answers and the rate."""

    def __init__(self, options: ServerOptions, folder: Path) -> None:
        self.source = f"server/{options.model}"
        self._options = options
        self._client = openai.OpenAI(
            base_url=options.url,
            api_key=os.environ.get("OPENAI_API_KEY", "").strip() or "none",
            timeout=options.timeout_s,
            # Bytes are counted as they come. A connection for each request costs nothing beside a text, and
            # nobody has to close it.
            default_headers={"Accept-Encoding": "identity", "Connection": "close"},
            http_client=openai.DefaultHttpxClient(
                event_hooks={"request": [self._watch], "response": [refuse_status]}
            ),
            max_retries=0,  # tenacity's, below, are counted and end
        )
        self._store, self._rate = AnswerStore(folder), RateLimit(folder, options.requests_per_minute)
        self._breaker = Breaker()
        self._now = threading.local()  # .deadline of the try that a thread makes
        self._todo: queue.SimpleQueue[tuple[str, Ask]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[str, Answer | Exception]] = queue.SimpleQueue()
        self._waiting: dict[str, list[str]] = {}  # rollouts by the digest of a request that was sent for them
        self._known: list[Answer] = []  # from the store, not collected yet
        self._lock = threading.Lock()
        self._threads = 0

    def ask(self, asks: Sequence[Ask]) -> list[GenerationRequest]:
        """Looks answers up, and puts new requests in line, with a thread for each of the first ones."""
        for ask in asks:
            key = digest("feedback", self.body(ask))
            if (known := self._store.get(key)) is not None:
                self._known.append(Answer(ask.rollout_id, "ok", *known))
            elif key in self._waiting:
                self._waiting[key].append(ask.rollout_id)
            else:
                self._waiting[key] = [ask.rollout_id]
                self._send(key, ask)
        return []

    def _send(self, key: str, ask: Ask) -> None:
        with self._lock:
            self._todo.put((key, ask))
            is_new = self._threads < MAX_IN_FLIGHT
            self._threads += is_new
        if is_new:
            threading.Thread(target=self._work, daemon=True).start()

    def read(self, generation: Generation) -> Answer:
        """Never called: the player's engine is asked nothing."""
        raise RuntimeError(f"{generation.request_id}: a server's answers come from the server")

    def collect(self, wait: bool) -> list[Answer]:
        """Returns the answers that are there; at least one if it may wait and one is due."""
        answers, self._known = self._known, []
        while self._waiting:
            block = wait and not answers
            try:
                key, answer = self._done.get(block, timeout=SIGN_SECONDS)
            except queue.Empty:
                if not block:
                    break
                sign_of_life("a wait for the feedback server")  # every try ends, and so do waits between them
                continue
            if isinstance(answer, Exception):
                raise answer
            answers += [replace(answer, rollout_id=name) for name in self._waiting.pop(key)]
        return answers

    def body(self, ask: Ask) -> dict[str, Any]:
        """Returns what is sent for an ask: all that the answer depends on."""
        options = self._options
        return {
            "model": options.model,
            "messages": list(ask.messages),
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            "seed": options.seed,
            "n": 1,
            "extra_body": {"stop_token_ids": list(options.stop_token_ids)} if options.stop_token_ids else {},
        }

    def call(self, ask: Ask) -> Answer:
        """Returns what one try, without the store, brings; raises CallError."""
        raw = self._response(self.body(ask))
        try:
            data = json.loads(raw)
            choice = data["choices"][0]
            text = choice["message"]["content"]
            tokens = (data.get("usage") or {}).get("completion_tokens") or 0
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise CallError("garbled", f"{type(error).__name__} in {raw[:80]!r}") from None
        if text is None and choice.get("finish_reason") == "length":
            return Answer(ask.rollout_id, "cut_off")  # it thought to the end
        if not isinstance(text, str) or not isinstance(tokens, int) or not 0 <= tokens < 2**31:
            raise CallError("garbled", f"no text in {raw[:80]!r}")
        return Answer(ask.rollout_id, "ok", text, tokens)

    def _response(self, body: dict[str, Any]) -> bytes:
        """Returns a response's bytes; raises CallError for too many, or for too long a wait for the last."""
        late = CallError("timeout", f"no end after {self._options.timeout_s:g} s")
        with Deadline(self._options.timeout_s) as self._now.deadline:
            try:
                raw = self._read(body)
            except (CallError, openai.APIConnectionError) as error:
                if self._now.deadline.passed:
                    raise late from None
                raise (error if isinstance(error, CallError) else _of_transport(error)) from None
            if self._now.deadline.passed:  # a body without a length ends where its connection does
                raise late
        return raw

    def _read(self, body: dict[str, Any]) -> bytes:
        raw = b""
        with self._client.chat.completions.with_streaming_response.create(**body) as response:
            try:
                for chunk in response.http_response.iter_raw():
                    raw += chunk
                    if len(raw) > MAX_BYTES:
                        raise CallError("too_large", f"more than {MAX_BYTES} bytes", may_pass=False)
            except CallError:
                raise
            except Exception as error:  # of the HTTP library, whose errors the client lets through here
                raise _of_transport(error) from None
        return raw

    def _watch(self, request: Any) -> None:
        request.extensions["trace"] = self._now.deadline.trace

    def _work(self) -> None:
        """Answers asks until none is in line; a defect goes to whoever collects."""
        while True:
            with self._lock:
                try:
                    key, ask = self._todo.get_nowait()
                except queue.Empty:
                    self._threads -= 1
                    return
            try:
                self._done.put((key, self._answer(key, ask)))
            except Exception as error:
                self._done.put((key, error))

    def _answer(self, key: str, ask: Ask) -> Answer:
        if failure := self._breaker.open_for():
            return Answer(ask.rollout_id, failure, "not sent: the server failed too often")
        again = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(MAX_TRIES),
            wait=tenacity.wait_random_exponential(multiplier=self._options.first_wait_s, max=20),
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, CallError) and error.may_pass),
            before=lambda state: self._rate.wait(),
            reraise=True,
        )
        try:
            answer: Answer = again(self.call, ask)
        except CallError as error:
            self._breaker.note(error.kind if error.may_pass else "")
            return Answer(ask.rollout_id, error.kind, str(error))
        self._breaker.note("")
        if answer.status == "ok":
            self._store.put(key, answer.text, answer.num_tokens)
        return answer
