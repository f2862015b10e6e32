"""What processes that ask one server share on disk: its answers, and how often it may be asked."""

import fcntl
import json
import os
import threading
import time
from pathlib import Path


class AnswerStore:
    """Answers by the digest of their request: what was answered once is not asked again.

    A file that a kill left torn is no answer. Throw the folder away when another model has the same name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> tuple[str, int] | None:
        """Returns text and number of tokens, or None."""
        try:
            data = json.loads(self._path(key).read_text("utf-8"))
            return str(data["text"]), int(data["num_tokens"])
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return None

    def put(self, key: str, text: str, num_tokens: int) -> None:
        """Keeps an answer; readers see all of it or nothing."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        temporary.write_text(json.dumps({"text": text, "num_tokens": num_tokens}), "utf-8")
        temporary.replace(path)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


class RateLimit:
    """Spreads requests of all processes evenly: a locked file holds when the last one was sent.

    Nobody reserves a time, so whoever dies while it waits holds nobody up; nor does a lower rate of before.
    Those who wait are served in no order.
    """

    def __init__(self, folder: Path, per_minute: float | None) -> None:
        self._path = folder / "last_request"
        self._seconds = 60 / per_minute if per_minute is not None else 0.0

    def wait(self) -> None:
        """Returns when the caller may send its request."""
        while (seconds := self._until_mine()) > 0:
            time.sleep(seconds)

    def _until_mine(self) -> float:
        """Returns 0 once the request is the caller's to send, else for how long it cannot be."""
        if not self._seconds:
            return 0.0
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            now = time.time()
            last = _number(file.read())
            seconds = max(0.0, last + self._seconds - now)
            if seconds == 0 or last > now:  # the clock was put back: from now on
                file.truncate(0)
                file.write(str(now))
        return min(seconds, self._seconds)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # new, or torn by a kill
        return 0.0
