"""A real browser for the tests: headless Chromium, controlled over a pipe, so that no driver is needed."""

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
"""seconds after which a browser that does not answer counts as dead; the machine may be busy"""
PHONE = 600
"""narrower windows are shown as on a phone"""
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
  const check = () => document.readyState === 'complete' && drawn() ? requestAnimationFrame(() => done(true))
                                                                    : setTimeout(check, 50);
  check();
})"""
"""resolves when all plots are drawn"""


@dataclass(frozen=True)
class PageView:
    """What happened when a page was shown."""

    errors: list[str]
    """errors and warnings on the console, and exceptions"""
    requests: list[str]
    """requested addresses, except the page itself"""
    facts: dict[str, Any]
    """answers to the questions in JavaScript"""


class Browser:
    """Speaks the DevTools protocol: JSON texts with a null byte after each."""

    def __init__(self, write_end: int, read_end: int) -> None:
        self._write_end, self._read_end, self._buffer, self._number = write_end, read_end, b"", 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **arguments: Any) -> dict[str, Any]:
        """The result of a method; events that arrive before it are collected."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        message |= {"sessionId": session} if session else {}
        os.write(self._write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            answer = self._receive(deadline - time.monotonic())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)
        raise TimeoutError(method)

    def _receive(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read_end], [], [], seconds)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._read_end, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
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
    ) -> PageView:
        """Opens a file in a window of this width, waits until its plots are drawn, and evaluates the questions."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable", session)
        phone = width < PHONE
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        self.call("Emulation.setTouchEmulationEnabled", session, enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", session, features=[scheme])
        address = page.resolve().as_uri()
        self.call("Page.navigate", session, url=address)
        self._evaluate(session, DRAWN)
        facts = {name: self._evaluate(session, question) for name, question in questions.items()}
        if picture is not None:
            screenshot = self.call("Page.captureScreenshot", session, captureBeyondViewport=True)
            picture.write_bytes(base64.b64decode(screenshot["data"]))
        self.call("Target.closeTarget", targetId=target)
        return PageView(self._errors(), [url for url in self._requests() if url != address], facts)

    def _evaluate(self, session: str, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", session, expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _errors(self) -> list[str]:
        kinds = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}
        return [json.dumps(event["params"])[:500] for event in self.events if event.get("method") in kinds]

    def _requests(self) -> list[str]:
        events = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        addresses = [event["request"]["url"] for event in events]
        return [address for address in addresses if not address.startswith(("data:", "blob:", "about:"))]


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in the folder; it ends with the block."""
    assert BINARY is not None
    browser_reads, we_write = os.pipe()
    we_read, browser_writes = os.pipe()
    # the browser expects to read at descriptor 3 and to write at 4, whatever the numbers are on our side
    command = f'exec "$@" 3<&{browser_reads} 4>&{browser_writes}'
    words = ["bash", "-c", command, "bash", BINARY, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    process = subprocess.Popen(
        words, pass_fds=(browser_reads, browser_writes), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(browser_reads)
    os.close(browser_writes)
    try:
        browser = Browser(we_write, we_read)
        yield browser
        with suppress(OSError, EOFError, TimeoutError):
            browser.call("Browser.close")
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(we_write)
        os.close(we_read)
