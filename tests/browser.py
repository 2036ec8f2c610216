"""A real browser for the tests: headless Chromium, told what to do over a pipe, so that no driver is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 90.0
"""seconds until an answer must have come; the machine may be busy"""
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
DRAWN = """new Promise(done => {
  const drawn = () => [...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.main-svg'));
  const look = () => document.readyState === 'complete' && drawn() ? requestAnimationFrame(() => done(true))
                                                                   : setTimeout(look, 50);
  look();
})"""


@dataclass(frozen=True)
class Seen:
    """What came of showing a page."""

    errors: list[str]
    """errors and warnings on the console, and exceptions"""
    requests: list[str]
    """addresses that were asked for, the page itself left out"""
    facts: dict[str, Any]
    """what the questions in JavaScript were answered with"""


class Browser:
    """Speaks the DevTools protocol: JSON texts with a null byte after each."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._held, self._number = to, back, b"", 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **arguments: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            answer = self._next(until - time.monotonic())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)
        raise TimeoutError(method)

    def _next(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._held:
            if not select.select([self._back], [], [], seconds)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._back, 1 << 20)
            if not part:
                raise EOFError("the browser has gone")
            self._held += part
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def show(
        self,
        page: Path,
        *,
        width: int,
        height: int,
        questions: dict[str, str],
        dark: bool = False,
        picture: Path | None = None,
    ) -> Seen:
        """Opens a file in a window of this width, as a phone would if it is narrow, and waits until plots are drawn."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for part in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{part}.enable", session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", session, **size)
        self.ask("Emulation.setTouchEmulationEnabled", session, enabled=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", session, features=[scheme])
        address = page.resolve().as_uri()
        self.ask("Page.navigate", session, url=address)
        self._evaluate(session, DRAWN)
        facts = {name: self._evaluate(session, question) for name, question in questions.items()}
        if picture is not None:
            shot = self.ask("Page.captureScreenshot", session, captureBeyondViewport=True)
            picture.write_bytes(base64.b64decode(shot["data"]))
        self.ask("Target.closeTarget", targetId=target)
        return Seen(self._errors(), [url for url in self._requests() if url != address], facts)

    def _evaluate(self, session: str, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", session, expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _errors(self) -> list[str]:
        kinds = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}
        return [json.dumps(event["params"])[:500] for event in self.events if event.get("method") in kinds]

    def _requests(self) -> list[str]:
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        addresses = [each["request"]["url"] for each in sent]
        return [address for address in addresses if not address.startswith(("data:", "blob:", "about:"))]


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in the folder; it ends with the block."""
    assert BINARY is not None
    read_there, write_here = os.pipe()
    read_here, write_there = os.pipe()
    # the browser reads at descriptor 3 and writes at 4, whatever these are here
    command = f'exec "$@" 3<&{read_there} 4>&{write_there}'
    words = ["bash", "-c", command, "bash", BINARY, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    process = subprocess.Popen(
        words, pass_fds=(read_there, write_there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(read_there)
    os.close(write_there)
    try:
        browser = Browser(write_here, read_here)
        yield browser
        with suppress(OSError, EOFError, TimeoutError):
            browser.ask("Browser.close")
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(write_here)
        os.close(read_here)
