"""Named points in the code where a test can make the process fail: how the recovery promises are proven.

`VDAPO_FAILPOINTS="<name>:<nth>=<action>[,...]"` arms them; without it a call costs two look-ups.
Actions: `kill` (SIGKILL to this process), `stop` (SIGSTOP to it), `hang` (it waits for ever), `raise`,
`enospc` (the disk-full error).
"""

import errno
import os
import re
import signal
import time
from collections import Counter

from pipeline.errors import ConfigError

_VARIABLE = "VDAPO_FAILPOINTS"
_ACTIONS = "kill|stop|hang|raise|enospc"
_hits: Counter[str] = Counter()


class FailpointError(RuntimeError):
    """Raised by an armed `raise` failpoint, in tests only."""


def failpoint(name: str) -> None:
    """Fails here if the environment asks for the n-th passage of this name; otherwise does nothing.

    With `VDAPO_FAILPOINTS_LOG=<file>` each name passed is appended there: a sweep learns the points so.
    """
    if log := os.environ.get(f"{_VARIABLE}_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(name + "\n")
    armed = os.environ.get(_VARIABLE)
    if not armed:
        return
    _hits[name] += 1
    action = parse(armed).get((name, _hits[name]))
    if action in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
    elif action == "hang":
        while True:
            time.sleep(60)
    elif action == "raise":
        raise FailpointError(f"failpoint {name}")
    elif action == "enospc":
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (failpoint {name})")


def parse(text: str) -> dict[tuple[str, int], str]:
    """Returns {(name, nth passage from 1): action}.

    Example:
        >>> parse("tasks.exit:1=kill")
        {('tasks.exit', 1): 'kill'}
    """
    result = {}
    for item in filter(None, text.split(",")):
        found = re.fullmatch(rf"(.+):([1-9]\d*)=({_ACTIONS})", item)
        if found is None:
            raise ConfigError(f"{_VARIABLE}: got {item!r}; allowed: <name>:<nth from 1>=<{_ACTIONS}>")
        result[found[1], int(found[2])] = found[3]
    return result
