"""Drive a real Chromium without a window, where this machine has one."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from selenium.webdriver.remote.webelement import WebElement

LIMIT_SEC = 60
NAMES = ("chromium", "chromium-browser", "google-chrome")


def why_no_browser() -> str | None:
    """Say why there is no browser to drive, None when there is one."""
    if not any(map(shutil.which, NAMES)):
        return f"none of {', '.join(NAMES)} is installed; Debian's package is chromium"
    return (
        None if shutil.which("chromedriver") else "chromedriver is not installed; Debian's package is chromium-driver"
    )


class Browser:
    """A browser, and what tests ask of its one page."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(next(filter(None, map(shutil.which, NAMES))))
        for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1300,1000"):
            options.add_argument(argument)
        options.add_argument(f"--user-data-dir={profile}")
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_script_timeout(LIMIT_SEC)

    def close(self) -> None:
        self.driver.quit()

    def open(self, file: Path, address: str = "") -> None:
        """Open a report anew, and wait until it is drawn."""
        self.driver.get("about:blank")
        self.log()
        self.driver.get(file.as_uri() + (f"#{address}" if address else ""))
        self.until(lambda: self.script("return document.documentElement.dataset.ready") == "yes")

    def script(self, source: str, *arguments: Any) -> Any:
        return self.driver.execute_script(source, *arguments)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition holds, and return what it gave."""
        return WebDriverWait(self.driver, LIMIT_SEC, 0.02).until(lambda _: condition())

    def log(self) -> list[str]:
        """Return what the console said since it was last asked."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries]

    def find(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css: str = "body") -> str:
        return str(self.script("return document.querySelector(arguments[0]).textContent", css))

    def click(self, css: str) -> None:
        self.script("document.querySelector(arguments[0]).click()", css)

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        for key in keys:
            self.script("return document.activeElement || document.body").send_keys(key)

    def choose(self, css: str, value: str) -> None:
        Select(self.find(css)).select_by_value(value)

    def rows(self) -> list[str]:
        """Return the names of the rollouts in the table, in its order."""
        return list(self.script("return [...document.querySelectorAll('#rows a')].map((link) => link.title)"))

    def opened(self, name: str) -> None:
        """Wait until a rollout is open with all it holds."""
        self.until(lambda: self.script("return document.getElementById('rollout-view').dataset.ready") == name)

    def address(self) -> str:
        return str(self.script("return decodeURIComponent(location.hash.slice(1))"))


__all__ = ["Browser", "Keys", "why_no_browser"]
