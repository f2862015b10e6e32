"""A stub of a server that speaks OpenAI's protocol, as a test wants it to behave."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the stub sends: `chunks`, each after `seconds`; nothing before them if `bare`.

    `later`: seconds in its header Retry-After.
    """

    chunks: Sequence[bytes]
    status: int = 200
    seconds: float = 0.0
    bare: bool = False
    later: str = ""


@dataclass
class Stub:
    """A running stub, and what it was sent."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)


def said(text: Any, tokens: Any = 7, finish: str = "stop", **more: Any) -> Reply:
    """Returns the reply that holds a text, and more of the message."""
    message = {"role": "assistant", "content": text, **more}
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    data = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
    return Reply([json.dumps(data | {"usage": {"completion_tokens": tokens}}).encode()])


@contextmanager
def stub(reply: Callable[[dict[str, Any]], Reply]) -> Iterator[Stub]:
    """Yields a stub that replies so to each request's body, on a free port of this machine."""
    found = Stub("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(Reply([json.dumps({"object": "list", "data": [{"id": "feedback"}]}).encode()]))

        def do_POST(self) -> None:
            found.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._send(reply(found.bodies[-1]))

        def _send(self, reply: Reply) -> None:
            try:
                if not reply.bare:
                    self.send_response(reply.status)
                    self.send_header("Content-Type", "application/json")
                    if reply.later:
                        self.send_header("Retry-After", reply.later)
                    self.end_headers()
                for chunk in reply.chunks:
                    time.sleep(reply.seconds)
                    self.wfile.write(chunk)
            except OSError:
                pass  # the client has hung up

        def log_message(self, format: str, *values: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
