"""Feedback by any server that speaks OpenAI's protocol: bounded in time, size, tries and rate.

What fails is an answer with a kind of failure, and never becomes a text. Only a server that refuses all it is
asked ends the stage: more tries would be in vain.
"""

import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import openai
import tenacity

from env.feedback.breaker import Breaker
from env.feedback.completion import completion_of
from env.feedback.deadline import Deadline
from env.feedback.failures import WRONG_KEY, CallError, of_transport, refuse_status
from env.feedback.leak_guard import END_THINK
from env.feedback.protocol import Answer, Ask
from env.feedback.store import AnswerStore, RateLimit
from pipeline.artifacts.signals import StopRequested, stop_if_asked
from pipeline.engines import Generation, GenerationRequest
from pipeline.errors import ConfigError
from pipeline.ids import digest
from pipeline.processes.life import sign_of_life

MAX_IN_FLIGHT = 16
"""Requests of one process at once."""
MAX_TRIES = 4
"""Of an ask, not counting those for which it is not to blame: the server is busy, or fails at everything."""
MAX_REFUSED = 5
"""Asks in a row that a server may refuse before it has answered any, or for their key."""
SIGN_SECONDS = 0.5
"""Between two signs of life of a player that waits for answers, and two looks whether it is to stop."""
MAX_BYTES = 2**20
"""Of a response; 2,000 tokens take some 10 kB."""
GREETING = Ask("", ({"role": "user", "content": "Say hello."},))
"""Asked once of a model whose text was cut: the answer shows whether it thinks."""
FORM = 2
"""Of answers in the store. 2: none of them is a thought that was cut off."""


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


class Server:
    """A `Writer`: a server, asked by threads of its own. `folder` keeps answers and the rate."""

    def __init__(self, options: ServerOptions, folder: Path) -> None:
        self.source = f"server/{options.model}"
        self._options = options
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        self._client = openai.OpenAI(
            base_url=options.url,
            api_key=key or "none",
            timeout=options.timeout_s,
            # Bytes are counted as they come. A connection for each request costs nothing beside a text, and
            # nobody has to close it.
            default_headers={"Accept-Encoding": "identity", "Connection": "close"},
            http_client=openai.DefaultHttpxClient(
                event_hooks={"request": [self._watch], "response": [partial(refuse_status, secret=key)]}
            ),
            max_retries=0,  # tenacity's, below, are counted and end
        )
        self._store, self._rate = AnswerStore(folder), RateLimit(folder, options.requests_per_minute)
        self._breaker = Breaker(options.first_wait_s, self._pause)
        self._now = threading.local()  # .deadline of the try that a thread makes
        self._todo: queue.SimpleQueue[tuple[str, Ask]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[str, Answer | Exception]] = queue.SimpleQueue()
        self._waiting: dict[str, list[str]] = {}  # rollouts by the digest of a request that was sent for them
        self._known: list[Answer] = []  # from the store, not collected yet
        self._lock = threading.Lock()
        self._threads = 0
        self._refused, self._has_answered = 0, False
        self._greeting = threading.Lock()
        self._is_thinker: bool | None = None  # None: not known yet
        self._over = threading.Event()  # nobody collects any more

    def ask(self, asks: Sequence[Ask]) -> list[GenerationRequest]:
        """Looks answers up, and puts new requests in line, with a thread for each of the first ones."""
        for ask in asks:
            key = digest("feedback", FORM, self.body(ask))
            if (known := self._store.get(key)) is not None:
                self._has_answered = True
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
                self._stop_if_asked()
                continue
            if isinstance(answer, Exception):
                raise answer
            answers += [replace(answer, rollout_id=name) for name in self._waiting.pop(key)]
        return answers

    def _stop_if_asked(self) -> None:
        """Raises StopRequested in a stage's process that got a signal: a wait may take minutes."""
        try:
            stop_if_asked()
        except StopRequested:
            self._over.set()
            raise

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
        said = completion_of(self._response(self.body(ask)))
        is_thought = said.is_cut and END_THINK not in said.text and (said.is_thinkers or self._thinks())
        return Answer(ask.rollout_id, "cut_off" if is_thought else "ok", said.text, said.num_tokens)

    def _thinks(self) -> bool:
        """Returns whether the model thinks before it answers a greeting; the server is asked once, if ever.

        Templates that open the thought themselves leave no mark in it but its end, so a text that was cut may
        be all thought. A model that does not think, and goes on until it is cut, has written feedback.
        """
        with self._greeting:
            if self._is_thinker is None:
                said = completion_of(self._response(self.body(GREETING)))
                self._is_thinker = said.is_thinkers or said.is_cut
            return self._is_thinker

    def _response(self, body: dict[str, Any]) -> bytes:
        """Returns a response's bytes; raises CallError for too many, or for too long a wait for the last."""
        late = CallError("timeout", f"no end after {self._options.timeout_s:g} s")
        with Deadline(self._options.timeout_s) as self._now.deadline:
            try:
                raw = self._read(body)
            except (CallError, openai.APIConnectionError) as error:
                failure = error if isinstance(error, CallError) else of_transport(error)
                raise (late if self._now.deadline.passed and not failure.status else failure) from None
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
                raise of_transport(error) from None
        return raw

    def _watch(self, request: Any) -> None:
        request.extensions["trace"] = self._now.deadline.trace

    def _work(self) -> None:
        """Answers asks until none is in line; an error ends all of that, and goes to whoever collects."""
        while not self._over.is_set():
            with self._lock:
                try:
                    key, ask = self._todo.get_nowait()
                except queue.Empty:
                    self._threads -= 1
                    return
            try:
                self._done.put((key, self._answer(key, ask)))
            except _AbandonedError:
                return
            except Exception as error:
                self._done.put((key, error))
                self._over.set()

    def _pause(self, seconds: float) -> None:
        if self._over.wait(seconds):
            raise _AbandonedError

    def _answer(self, key: str, ask: Ask) -> Answer:
        """Returns what comes of an ask in the end; raises ConfigError if the server refuses all of them."""
        backoff = tenacity.wait_random_exponential(multiplier=self._options.first_wait_s, max=20)
        counted, asked_for = 0, 0.0  # tries that the ask has had; the wait that the server wants now

        def tried() -> Answer:
            nonlocal counted, asked_for
            self._breaker.admit()
            self._rate.wait()
            try:
                answer = self.call(ask)
            except CallError as error:
                asked_for = error.retry_after
                if not error.may_pass:
                    self._breaker.answered()  # it works, and will not have this
                elif self._breaker.failed(error):
                    counted += 1
                raise
            self._breaker.answered()
            return answer

        again = tenacity.Retrying(
            stop=lambda state: counted >= MAX_TRIES,
            wait=lambda state: max(backoff(state), asked_for),
            sleep=self._pause,
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, CallError) and error.may_pass),
            reraise=True,
        )
        try:
            answer = again(tried)
        except CallError as error:
            self._note_refusal(error)
            return Answer(ask.rollout_id, error.kind, str(error))
        self._refused, self._has_answered = 0, True
        if answer.status == "ok":
            self._store.put(key, answer.text, answer.num_tokens)
        return answer

    def _note_refusal(self, error: CallError) -> None:
        """Raises ConfigError if the server has refused so many asks and answered none, or refuses the key."""
        if not error.is_refusal:
            return
        with self._lock:
            self._refused += 1
            if self._refused < MAX_REFUSED or (self._has_answered and error.status != WRONG_KEY):
                return
        raise ConfigError(
            f"feedback.url = {self._options.url}, feedback.model = {self._options.model}: the server refused "
            f"{self._refused} asks in a row ({error}). What was committed stays. Next: correct feedback.url, "
            "feedback.model, feedback.max_tokens or OPENAI_API_KEY until vdapo check-feedback gets an answer"
        )


class _AbandonedError(Exception):
    """Ends a thread whose answers nobody collects any more."""
