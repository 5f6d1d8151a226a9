"""A real headless Chromium, driven by its own debugging protocol."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}
"""Code and text of the keys that a test presses."""


def program() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. ``problems`` holds what its console reported: exceptions, refused resources, errors."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.sent = 0
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result."""
        self.sent += 1
        self.socket.send(json.dumps({"id": self.sent, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=30))
            if message.get("id") == self.sent:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def show(self, url: str, *, width: int, height: int, dark: bool = False) -> None:
        """Open a page as a screen of this size shows it, with no problems noted yet."""
        self.problems.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, within_s: float = 20) -> None:
        """Until an expression is true."""
        until = time.monotonic() + within_s
        while not self.value(expression):
            assert time.monotonic() < until, f"not in {within_s} s: {expression}\n{self.text()}"
            time.sleep(0.1)

    def text(self) -> str:
        """What a reader sees."""
        return str(self.value("document.body.innerText"))

    def picture(self, path: Path) -> None:
        """Save the whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def keep(self, name: str, folder: Path) -> None:
        """A picture for people to look at, in the folder of ``GRAPHSERVE_SCREENSHOTS`` or in this one."""
        self.picture(Path(os.environ.get("GRAPHSERVE_SCREENSHOTS", folder)) / f"{name}.png")

    def press(self, key: str) -> None:
        """One of the keys Tab, Enter and the space bar."""
        code, text = KEYS[key]
        names = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **names, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **names)


@contextlib.contextmanager
def browsing(folder: Path) -> Iterator[Page]:
    """A tab of a browser with a profile of its own below ``folder``."""
    path = program()
    assert path is not None
    process = subprocess.Popen(
        [path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        with httpx.Client(trust_env=False, timeout=30) as api:
            port = _port(folder / "DevToolsActivePort", process)
            tab = api.put(f"http://127.0.0.1:{port}/json/new?about:blank").json()
        with connect(tab["webSocketDebuggerUrl"], max_size=64 << 20, proxy=None) as socket:
            yield Page(socket)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the program may be a script that starts the browser
        process.wait(20)


def _port(file: Path, process: "subprocess.Popen[bytes]") -> str:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        assert process.poll() is None, "the browser ended"
        if file.exists() and (lines := file.read_text().splitlines()):
            return lines[0]
        time.sleep(0.05)
    raise AssertionError("the browser does not listen")
