"""Fixtures of the tests that run the documentation's blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from tests.docs.running import PageRun
from tests.ops.conftest import ehbalance

__all__ = ["ehbalance"]

HUB = "flights"

Start = Callable[..., PageRun]


@pytest.fixture
def hub() -> Iterator[Emulator]:
    with Emulator({HUB: 8}) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts to run a page."""
    runs = []

    def begin(page: str, replaced: dict[str, str] | None = None, **names: Any) -> PageRun:
        runs.append(PageRun(page, tmp_path, replaced or {}, **names))
        return runs[-1]

    monkeypatch.chdir(tmp_path)
    failed = request.session.testsfailed
    with ExitStack() as stack:
        stack.callback(lambda: [run.close(passed=request.session.testsfailed == failed) for run in runs])
        yield begin


def send(hub: Emulator, count: int) -> None:
    for number in range(count):
        hub.append(HUB, number % 8, [json.dumps({"id": f"flight {number}"}).encode()])
