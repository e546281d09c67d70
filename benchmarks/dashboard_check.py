"""The dashboard in a real browser: headless Chromium against a running server.

    umbel serve --port 8000 &
    python benchmarks/dashboard_check.py --url http://127.0.0.1:8000 --out shots/

For 390 and 1600 px, light and dark: nothing is wider than the window, the console has no errors,
nothing is asked of another host, the arrow keys walk the tree, every control can be focused; a
screenshot of each for eyes. Speaks Chromium's protocol over its pipe; needs no package. With
`--load` it keeps the server busy meanwhile.
"""

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

WIDTHS = (390, 1600)
SCHEMES = ("light", "dark")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
SYSTEM = "You answer questions about gardens, umbellifers and bees, in short sentences. " * 8
QUESTIONS = ("Describe dill.", "Describe fennel.", "Which bees visit carrots?", "What is an umbel?")


class Browser:
    """A Chromium with one page. Messages are JSON, each followed by a zero byte."""

    def __init__(self, binary: str) -> None:
        self.problems: list[str] = []
        self.urls: list[str] = []
        self._profile = tempfile.mkdtemp(prefix="umbel-chromium-")
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        command = [binary, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        shell = f'exec "$@" 3<&{to_read} 4>&{from_write}'  # where Chromium looks for its pipe
        self._process = subprocess.Popen(
            ["sh", "-c", shell, "sh", *command],
            pass_fds=(to_read, from_write),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """One command and its answer; events that come before it are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def value(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _read(self) -> Any:
        while b"\0" not in self._buffer:
            part = os.read(self._from, 1 << 16)
            if not part:
                raise RuntimeError("Chromium ended")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: Any) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])


def check(browser: Browser, url: str, width: int, scheme: str, out: Path) -> list[str]:
    """What is wrong with the page at one size and in one scheme."""
    browser.problems.clear()
    browser.urls.clear()
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", features=media)
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
    )  # fmt: skip
    browser.call("Page.navigate", url=f"{url}/dashboard")
    for _ in range(60):  # until it drew something, and then some samples more
        time.sleep(0.1)
        if browser.value("document.querySelectorAll('.tile').length") == 8:
            break
    time.sleep(4.0)
    problems = _problems(browser, url, width, scheme)
    metrics = browser.call("Page.getLayoutMetrics")["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": width, "height": metrics["height"], "scale": 1}
    shot = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    (out / f"dashboard-{width}-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))
    return [f"{width} px, {scheme}: {problem}" for problem in problems + browser.problems]


def _problems(browser: Browser, url: str, width: int, scheme: str) -> list[str]:
    problems = []
    if browser.value("document.getElementById('state').textContent") != "live":
        problems.append("it is not live")
    if browser.value("document.documentElement.dataset.scheme") != scheme:
        problems.append("the colours do not follow the system")
    wide = browser.value("document.documentElement.scrollWidth")
    if wide > width:
        problems.append(f"it is {wide} px wide")
    problems += _keyboard(browser)
    others = [one for one in browser.urls if not one.startswith((url, "data:", "about:"))]
    return problems + [f"it asked for {one}" for one in others]


def _keyboard(browser: Browser) -> list[str]:
    """Tab reaches the controls and the tree; arrows move in the tree."""
    reached: set[str] = set()
    names = "document.activeElement.id || document.activeElement.className.split(' ')[0]"
    browser.value("document.activeElement.blur()")
    for _ in range(12):
        browser.call(
            "Input.dispatchKeyEvent", type="rawKeyDown", windowsVirtualKeyCode=9, key="Tab"
        )
        browser.call("Input.dispatchKeyEvent", type="keyUp", windowsVirtualKeyCode=9, key="Tab")
        reached.add(str(browser.value(names)))
    problems = [f"Tab does not reach {name}" for name in ("scheme", "pause") if name not in reached]
    if browser.value("document.querySelectorAll('.node').length") < 2:
        return problems
    if "node" not in reached:
        problems.append("Tab does not reach the tree")
    browser.value("document.querySelector('.node[tabindex=\"0\"]').focus()")
    before = browser.value("document.activeElement.dataset.key")
    for key in ("ArrowRight", "ArrowDown"):
        browser.press(key)
    if browser.value("document.activeElement.dataset.key") == before:
        problems.append("the arrow keys do not walk the tree")
    time.sleep(1.5)  # an update must not take the focus away
    if browser.value("document.activeElement.className.split(' ')[0]") != "node":
        problems.append("an update took the focus from the tree")
    return problems


def load(url: str, stop: threading.Event, number: int) -> None:
    """Requests that share prefixes, one after the other."""
    while not stop.is_set():
        question = QUESTIONS[number % len(QUESTIONS)]
        number += 1
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        body = {"messages": messages, "max_tokens": 96, "temperature": 0.8, "n": 1 + number % 2}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(),
            {"content-type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--out", type=Path, default=Path("dashboard-shots"))
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="clients meanwhile")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    url = args.url.rstrip("/")
    with urllib.request.urlopen(f"{url}/ready", timeout=10) as answer:
        answer.read()
    clients = [
        threading.Thread(target=load, args=(url, stop, number)) for number in range(args.load)
    ]
    browser = Browser(args.chromium)  # first: a shell knows file descriptors up to 9 only
    for client in clients:
        client.start()
    try:
        problems = [
            problem
            for width in WIDTHS
            for scheme in SCHEMES
            for problem in check(browser, url, width, scheme, args.out)
        ]
    finally:
        browser.close()
        stop.set()
        for client in clients:
            client.join()
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(problems)} problems; screenshots in {args.out}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
