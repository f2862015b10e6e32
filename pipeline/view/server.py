"""A server for one reader on this machine: it answers GET from 127.0.0.1 and reads the run it was given.

No request names a path: it names an entry of a fixed list, a stage that is known, numbers and texts. Whoever
resolves a name of theirs to this machine (DNS rebinding) is refused by the Host header; other sites cannot
read an answer, embed it, or make the page load anything.
"""

import json
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pipeline.errors import ArtifactError
from pipeline.text import visible
from pipeline.view import page
from pipeline.view.index import StageIndex
from pipeline.view.rollout import matching, rollouts_at, shown, tokens_at
from pipeline.view.run import Run

ADDRESS = "127.0.0.1"
MOST_ROWS = 200
"""Rows that one request may ask for."""
Query = Mapping[str, str]


def _index(run: Run, query: Query) -> Any:
    index = run.index(query["stage"])
    return {"version": index.version, "rows": index.num_rows, "columns": index.columns}


def _step_columns(run: Run, query: Query) -> Any:
    return run.index(query["stage"], query["version"]).step_columns


def _asked(run: Run, query: Query) -> tuple[StageIndex, list[int]]:
    index = run.index(query["stage"], query["version"])
    rows = [int(row) for row in query["rows"].split(",")]
    if len(rows) > MOST_ROWS or not all(0 <= row < index.num_rows for row in rows):
        raise ValueError(f"allowed: at most {MOST_ROWS} rows of {index.num_rows}")
    return index, rows


def _briefs(run: Run, query: Query) -> Any:
    index, rows = _asked(run, query)
    return shown(index.briefs(rows))


def _rollouts(run: Run, query: Query) -> Any:
    return rollouts_at(run, *_asked(run, query))


def _tokens(run: Run, query: Query) -> Any:
    return tokens_at(run, *_asked(run, query))


def _match(run: Run, query: Query) -> Any:
    index = run.index(query["stage"], query["version"])
    if "text" in query:
        return matching(index, query["text"])
    return index.with_value(float(query["low"]), float(query["high"])).tolist()


def _find(run: Run, query: Query) -> Any:
    found = run.find(query["id"], query.get("stage"))
    if found is None:
        raise LookupError("no rollout here has such an id")
    return {"stage": found[0], "row": found[1]}


API: dict[str, Callable[[Run, Query], Any]] = {
    "/api/run": lambda run, query: run.facts(),
    "/api/index": _index,
    "/api/step_columns": _step_columns,
    "/api/briefs": _briefs,
    "/api/rollouts": _rollouts,
    "/api/tokens": _tokens,
    "/api/match": _match,
    "/api/find": _find,
}
FILES = {
    "/view.html": ("text/html", page.HTML),
    "/view.css": ("text/css", page.CSS),
    "/view.js": ("text/javascript", page.JS),
}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def answer(run: Run, target: str) -> tuple[HTTPStatus, str, str, str]:
    """Returns status, type, content security policy and body of a request for a target, path and query."""
    try:
        parts = urlsplit(target)
        if parts.path in FILES:
            kind, path = FILES[parts.path]
            return HTTPStatus.OK, kind, page.POLICY, path.read_text("utf-8")
        if (report := run.page_at(parts.path)) is not None:
            return HTTPStatus.OK, "text/html", page.REPORT_POLICY, report.read_text("utf-8")
        if parts.path not in API:
            return _refused(HTTPStatus.NOT_FOUND, f"nothing is at {parts.path}")
        said = API[parts.path](run, dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=20)))
    except KeyError as error:
        return _refused(HTTPStatus.BAD_REQUEST, f"{error} is missing")
    except LookupError as error:
        return _refused(HTTPStatus.NOT_FOUND, str(error))
    except ValueError as error:
        return _refused(HTTPStatus.BAD_REQUEST, str(error))
    except (ArtifactError, OSError) as error:
        return _refused(HTTPStatus.CONFLICT, str(error))
    return _said(HTTPStatus.OK, said)


def _refused(status: HTTPStatus, error: str) -> tuple[HTTPStatus, str, str, str]:
    return _said(status, {"error": visible(error)})


def _said(status: HTTPStatus, said: Any) -> tuple[HTTPStatus, str, str, str]:
    text = json.dumps(said, ensure_ascii=False, allow_nan=False)
    return status, "application/json", page.NOTHING, text


def make_server(run: Run, port: int = 0) -> ThreadingHTTPServer:
    """Returns a server of a run, bound to 127.0.0.1; port 0 takes a free one. OSError if it is taken."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version, sys_version = "vdapo", ""

        def do_GET(self) -> None:
            names = {f"{name}:{self.server.server_port}" for name in (ADDRESS, "localhost")}  # type: ignore[attr-defined]
            if self.headers.get_all("Host") not in [[name] for name in names]:
                said = f"this server answers to {' and '.join(sorted(names))} alone"
                return self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", page.NOTHING, said)
            if self.path == "/":
                return self._send(HTTPStatus.FOUND, "text/plain", page.NOTHING, "", Location="/view.html")
            return self._send(*answer(run, self.path))

        def _send(self, status: HTTPStatus, kind: str, policy: str, text: str, **more: str) -> None:
            body = text.encode()
            self.send_response(status)
            headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Security-Policy": policy}
            for name, value in (headers | HEADERS | more | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Says nothing: a target may hold what a model wrote."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Says nothing of a reader who went away."""
            if not isinstance(sys.exc_info()[1], ConnectionError):
                super().handle_error(request, client_address)

    return Server((ADDRESS, port), Handler)
