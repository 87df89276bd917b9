"""The page in headless Chromium.

`EHBALANCE_DRAW_PICTURES=1 make test ARGS=tests/ops/dashboard/test_browser.py` writes the pictures of docs/pictures.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from spark_ehbalance.ops.dashboard.page import facts, page
from tests.ops.dashboard.groups import make, move
from tests.ops.dashboard.sample_group import difficult, view
from tests.ops.dashboard.server import running
from tests.ops.groups import change
from tests.waiting import wait_until

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"

#: The maximum size of a picture in bytes.
LARGEST = 200_000

#: Width and height of a large screen, and of a phone.
SIZES = ((1400, 1010), (390, 844))

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def open(self, address: str, width: int = 1400, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self._driver.get("about:blank")
        self.requested(), self.errors()  # from the previous page
        self._driver.get(address)

    def evaluate(self, script: str) -> Any:
        return self._driver.execute_script(f"return {script}")

    def owner(self, partition: str) -> str:
        """The owner whose row contains this partition on the page."""
        return str(
            self.evaluate(
                f"[...document.querySelectorAll('.row')].find((row) => [...row.querySelectorAll('.cell')]"
                f".some((cell) => cell.textContent === '{partition}'))?.querySelector('.name').firstChild.data"
            )
        )

    def picture(self) -> bytes:
        taken = self._driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        return base64.b64decode(taken["data"])

    def requested(self) -> list[str]:
        """The addresses requested since the last call."""
        logged = [json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance")]
        return [event["params"]["request"]["url"] for event in logged if event["method"] == "Network.requestWillBeSent"]

    def errors(self) -> list[str]:
        """The console's messages since the last call."""
        return [entry["message"] for entry in self._driver.get_log("browser")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        what = "chromium and chromedriver (Debian: chromium, chromium-driver) are not installed"
        pytest.fail(what) if os.environ.get("EHBALANCE_REQUIRE_CHROMIUM") == "1" else pytest.skip(what)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options, Service(driver)) as running:
        yield Browser(running)


def shows(browser: Browser, partition: str, owner: str) -> float:
    """Seconds until the page displays the partition in the owner's row."""
    began = time.monotonic()
    wait_until(lambda: browser.owner(partition) == owner, f"{partition} is {owner}'s")
    return time.monotonic() - began


def live(browser: Browser) -> str:
    return str(browser.evaluate("document.getElementById('live').textContent"))


def test_moves_are_displayed_within_three_seconds_even_after_an_outage(browser: Browser, tmp_path: Path) -> None:
    table = tmp_path / "leases"
    make(table, "ann", "bob", partitions=8)
    with running(table) as dashboard:
        browser.open(dashboard.address)
        shows(browser, "7", "ann")
        waited = list[float]()
        for partition in "123":
            move(table, partition, "bob")
            waited.append(shows(browser, partition, "bob"))
        assert min(waited) < 3, waited  # the fastest of three, because the machine can be busy
        assert live(browser) == "live"
        tiles = "document.querySelector('.tiles').textContent"
        assert "not measured" in browser.evaluate(tiles)
        change(table, lease_duration_ms=1000)
        wait_until(lambda: "2 not live" in browser.evaluate(tiles), "nobody renews")
        assert "No member is live" in browser.evaluate("document.querySelector('.findings').textContent")
        assert browser.errors() == []
    wait_until(lambda: re.fullmatch(r"disconnected for [\d.]+ s", live(browser)), "it shows so")
    move(table, "4", "bob")
    with running(table, port=dashboard.port):
        shows(browser, "4", "bob")
        wait_until(lambda: live(browser) == "live", "it is connected again")
    assert all("net::ERR_" in error for error in browser.errors()), "but for the server that was away"
    assert {address for address in browser.requested() if not address.startswith((dashboard.address, "data:"))} == set()


def test_saved_page_needs_no_network_and_its_picture_is_small(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page([facts("leases/orders", view())]), encoding="utf-8")
    browser.open(f"file://{tmp_path}/page.html", *SIZES[0])
    text = browser.evaluate("document.body.innerText")
    for shown in ("saved 2026-02-02 02:40:00 UTC", "Batch 42 of orders-spot-2", "near the ledger", "spot-1.internal"):
        assert shown in text
    assert len(browser.evaluate("[...document.querySelectorAll('.cell')]")) == 32
    picture = browser.picture()
    assert len(picture) < LARGEST
    if os.environ.get("EHBALANCE_DRAW_PICTURES") == "1":
        (PICTURES / "dashboard.png").write_bytes(picture)
    assert browser.errors() == []
    assert all(address.startswith(("file://", "data:")) for address in browser.requested())


def test_difficult_groups_fit_the_width_of_the_screen(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(difficult()), encoding="utf-8")
    for width, height in SIZES:
        browser.open(f"file://{tmp_path}/page.html", width, height)
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert "There is no lease table at leases/missing" in browser.evaluate("document.body.innerText")
        rows = "document.querySelectorAll('article:first-child .card:nth-of-type(3) tbody tr').length"
        assert browser.evaluate(rows) == 32, "the partitions that wait for longest"
        browser.evaluate("document.querySelector('button').click()")
        assert browser.evaluate(rows) == 256
        assert browser.errors() == []
