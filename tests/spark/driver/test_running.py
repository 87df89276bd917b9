"""`spark_ehbalance.run` with fake queries."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ehbalance.dependencies import Py4JError
from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.spark import running
from tests.raising import raises


class Hanging:
    """A query whose `foreachBatch` function does not return. Like Spark's queries, it becomes inactive when it is
    stopped, but ends only when the function returns."""

    name, id, lastProgress = "hanging", "1", None

    def __init__(self, error: Exception | None = None) -> None:
        self.status = {"message": "Processing new data"}
        self.isActive = error is None
        self.error = error
        self.never = threading.Event()

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False
        self.never.wait(60)

    def awaitTermination(self) -> None:
        if self.error:
            raise self.error
        self.never.wait(60)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "remote", lambda session: SimpleNamespace())
    monkeypatch.setattr(running, "hand_over", lambda query, timeout: time.sleep(timeout))
    monkeypatch.setattr(running, "_GRACE", 0.2)


@pytest.mark.parametrize("can_be_notified", [True, False])
def test_run_returns_although_a_foreach_batch_function_hangs(
    can_be_notified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark Connect, a query cannot receive a request to leave while the batch uses all cores."""
    query: Any = Hanging()
    if not can_be_notified:
        monkeypatch.setattr(running, "hand_over", lambda query, timeout: query.never.wait(60))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    began = time.monotonic()
    running.run(query, timeout=0.1)
    assert time.monotonic() - began < 30
    assert not query.isActive
    query.never.set()


def test_run_raises_a_querys_error_while_another_query_hangs() -> None:
    hanging: Any = Hanging()
    failed: Any = Hanging(ValueError("this one"))
    failed.never.set()
    began = time.monotonic()
    with pytest.raises(ValueError, match="this one"):
        running.run(hanging, failed, timeout=0.1)
    hanging.never.set()
    assert time.monotonic() - began < 30


class DeadJvm:
    """py4j's view of a killed JVM: every name can be looked up, but every call fails."""

    def __getattr__(self, name: str) -> DeadJvm:
        return self

    def __call__(self, *_: object) -> None:
        raise Py4JError("connection refused")


def test_killed_jvm_raises_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(Hanging):
        @property
        def isActive(self) -> bool:
            raise Py4JError("An error occurred while calling o31.isActive")

        @isActive.setter
        def isActive(self, value: bool) -> None: ...

    monkeypatch.setattr(running, "remote", lambda session: None)
    monkeypatch.setattr(running, "_context", lambda: SimpleNamespace(_jvm=DeadJvm()))
    query: Any = Lost()
    with raises(EhBalanceError, "EHB_DRIVER_LOST", reason=re.compile("o31.isActive")):
        running.run(query)
