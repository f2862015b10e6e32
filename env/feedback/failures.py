"""How a try to have feedback written fails: what kind it is, what the server says of it, and for how long."""

import time
from collections.abc import Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from pipeline.text import visible

MAX_REASON_BYTES = 500
"""Of the body of an error that are kept: what a server refuses, it explains there."""
REASON_SECONDS = 1.0
"""That such a body may take to come."""
MAX_WAIT_SECONDS = 120.0
"""That a server may ask for in its header Retry-After; a longer wait is tried after these."""
WRONG_KEY, BUSY = 401, 429
_AGAIN = (408, 409, BUSY)
"""HTTP status codes of a client's fault that another try may mend."""
_DOWN = (BUSY, 502, 503, 504)
"""HTTP status codes that say nothing of what was asked."""


class CallError(Exception):
    """A try that failed.

    Args:
        kind: one of FEEDBACK_FAILURES.
        detail: more of it, for people.
        may_pass: whether another try may be answered.
        is_down: whether the server is busy or not there, whatever it is asked.
        status: HTTP status code, 0 without one.
        retry_after: seconds for which the server wants to be left alone.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        may_pass: bool = True,
        is_down: bool = False,
        status: int = 0,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.may_pass, self.is_down = kind, may_pass, is_down
        self.status, self.retry_after = status, retry_after

    @property
    def is_refusal(self) -> bool:
        """Whether the server finds fault with the request, as it would the next time."""
        return 0 < self.status < 500 and self.status not in _AGAIN


def refuse_status(response: Any, secret: str) -> None:
    """Raises CallError for a response that is no success, before another address or all of its body is read.

    The client itself would read such a body to its end, however long.
    """
    if response.is_success:
        return
    code = response.status_code
    reason = _reason(response.iter_raw(), secret)
    raise CallError(
        "http_error",
        f"HTTP {code}: {reason}" if reason else f"HTTP {code}",
        may_pass=code in _AGAIN or code >= 500,
        is_down=code in _DOWN,
        status=code,
        retry_after=wanted_wait(response.headers.get("retry-after")),
    )


def of_transport(error: Exception) -> CallError:
    """Returns an error of the HTTP library by its name alone: its words may hold the key."""
    name = type(error.__cause__ or error).__name__
    kind = "timeout" if "Timeout" in name else "unreachable"
    return CallError(kind, name, is_down=name.startswith("Connect"))


def wanted_wait(header: str | None) -> float:
    """Returns for how many seconds a header Retry-After, a number or a date, asks to be left alone.

    Example:
        >>> [wanted_wait(header) for header in ("7", None, "soon", "86400", "Wed, 21 Oct 2015 07:28:00 GMT")]
        [7.0, 0.0, 0.0, 120.0, 0.0]
    """
    seconds = 0.0
    with suppress(TypeError, ValueError, OverflowError):
        if header and header.strip()[:1].isalpha():
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        elif header:
            seconds = float(header)
    return min(max(0.0, seconds), MAX_WAIT_SECONDS)


def _reason(chunks: Iterator[bytes], secret: str) -> str:
    """Returns the beginning of a body on one line, as far as it has come, with stars for the key."""
    raw, until = b"", time.monotonic() + REASON_SECONDS
    with suppress(Exception):  # whatever breaks the connection, the status is known
        for chunk in chunks:
            raw += chunk
            if len(raw) >= MAX_REASON_BYTES or time.monotonic() > until:
                break
    text = raw[:MAX_REASON_BYTES].decode("utf-8", "ignore")
    if secret:
        text = text.replace(secret, "***")
        begun = (size for size in range(len(secret) - 1, 3, -1) if text.endswith(secret[:size]))
        text = text[: len(text) - next(begun, 0)]  # a key may begin where the text ends
    return visible(" ".join(text.split()))
