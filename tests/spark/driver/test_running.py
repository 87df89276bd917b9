"""`spark_ehbalance.run` with queries that are none."""

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
    """A query whose function of `foreachBatch` does not return. As Spark's, it is not active as soon as it is stopped,
    and ends only with its function."""

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
def test_it_returns_although_a_function_of_foreach_batch_does_not(
    can_be_notified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark Connect a query cannot receive a request to leave while the batch has all cores."""
    query: Any = Hanging()
    if not can_be_notified:
        monkeypatch.setattr(running, "hand_over", lambda query, timeout: query.never.wait(60))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    began = time.monotonic()
    running.run(query, timeout=0.1)
    assert time.monotonic() - began < 30
    assert not query.isActive
    query.never.set()


def test_it_raises_the_error_of_a_query_beside_one_that_hangs() -> None:
    hanging: Any = Hanging()
    failed: Any = Hanging(ValueError("this one"))
    failed.never.set()
    began = time.monotonic()
    with pytest.raises(ValueError, match="this one"):
        running.run(hanging, failed, timeout=0.1)
    hanging.never.set()
    assert time.monotonic() - began < 30


class DeadJvm:
    """py4j's view of a killed JVM: every name can be looked up, every call fails."""

    def __getattr__(self, name: str) -> DeadJvm:
        return self

    def __call__(self, *_: object) -> None:
        raise Py4JError("connection refused")


def test_a_killed_jvm_ends_in_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
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
