"""A headless Chromium, driven through a pipe by its own protocol: what a person would see and press.

Chromium is no package of Python's: `apt-get install chromium`, or any other that is on PATH by one of NAMES.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def _until(selector: str) -> str:
    """Returns the expression that waits for an element, and gives the page's milliseconds then."""
    return f"""new Promise(done => {{
      const look = () => document.querySelector({json.dumps(selector)})
        ? done(performance.now()) : setTimeout(look, 5);
      look();
    }})"""


WHOLE = "body[data-ready]"  # of a page that says that all of it is there
READY = _until(WHOLE)


def executable() -> str | None:
    """Returns the path of a Chromium; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser of its own; a context manager."""

    def __init__(self, folder: Path, size: tuple[int, int] = (1400, 900)) -> None:
        command = executable()
        if command is None:
            raise FileNotFoundError(f"no browser on PATH; any of {', '.join(NAMES)} will do")
        (read, self._out), (self._in, write) = os.pipe(), os.pipe()
        flags = [
            *("--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}", "--no-first-run"),
            *("--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium refuses root one
        ]
        # The protocol's pipes are the file descriptors 3 and 4; copies above them first: ours may be 4 and 3.
        script = (
            "import fcntl, os, sys; ours = [fcntl.fcntl(int(a), fcntl.F_DUPFD, 10) for a in sys.argv[1:3]]; "
            "os.dup2(ours[0], 3); os.dup2(ours[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, str(read), str(write), command, *flags],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._number, self._rest, self._session = 0, b"", ""
        self.errors: list[str] = []  # what the page's script or its policy complained of
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        width, height = size
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = ""
        self._call("Browser.close")
        self._process.wait(30)
        os.close(self._out)
        os.close(self._in)

    def open(self, url: str, shows: str = WHOLE) -> float:
        """Returns the milliseconds from the navigation until the page says that all of it is there.

        A page that never says so: until there is an element of the selector `shows`.
        """
        self._call("Page.navigate", url="about:blank")  # else another place on the same page is no navigation
        self._call("Page.navigate", url=url)
        return float(self.value(_until(shows)))

    def value(self, expression: str) -> Any:
        """Returns the value of an expression in the page; RuntimeError for one that throws."""
        found = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", expression))
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Presses a key and waits until the page is ready again."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, **text)
        # What a key changes begins a little later: an answer of the server, then another address.
        self.value(f"new Promise(go => setTimeout(go, 500)).then(() => {READY})")

    def click(self, selector: str) -> str:
        """Clicks on the first element of a selector; returns the address that it opens in a new tab."""
        place = self.value(
            f"""(() => {{ const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center", behavior: "instant"}});
            const box = found.getBoundingClientRect();
            return {{x: box.x + box.width / 2, y: box.y + box.height / 2}}; }})()"""
        )
        before = self._tabs()
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if new := [url for tab, url in self._tabs().items() if tab not in before and url]:
                return str(new[0])
            time.sleep(0.1)
        raise RuntimeError(f"a click on {selector} opens nothing")

    def _tabs(self) -> dict[str, str]:
        tabs = self._call("Target.getTargets")["targetInfos"]
        return {tab["targetId"]: tab["url"] for tab in tabs if tab["type"] == "page"}

    def go(self, address: str) -> float:
        """Returns the milliseconds from another address after "#" until the page is ready again."""
        return float(
            self.value(
                f"""(async () => {{ const begun = performance.now(); delete document.body.dataset.ready;
                location.hash = {json.dumps(address)}; return await {READY} - begun; }})()"""
            )
        )

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of the browser so far, all of its processes together."""
        return sum(cpu_seconds(pid) for pid in _family(self._process.pid))

    def dark(self, is_dark: bool) -> None:
        """Makes the page believe that its reader prefers dark colours, or light ones."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def picture(self) -> bytes:
        """Returns what is seen, as a PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']}")
                return said["result"]
            if said.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(said["params"]["exceptionDetails"]))
            elif said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.errors.append(said["params"]["entry"]["text"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 20)
            if not more:
                raise RuntimeError("the browser is gone")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def cpu_seconds(pid: int) -> float:
    """Returns the processor seconds of a process so far; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    """Returns a process and all that came from it."""
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return [pid]
    return [pid, *(one for text in texts for child in text.split() for one in _family(int(child)))]
