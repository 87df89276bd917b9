"""Signals while `run` waits; `tests/spark/test_run.py` tests them with Spark."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

from spark_ehbalance import run
from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.spark.signals import StopSignals, _JavaHandler
from tests.raising import raises


def test_signal_is_reported_once_and_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals(None).received() as signals:
        assert signals.wait(0.0) is None
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.wait(10.0) == signal.SIGINT
        _JavaHandler(signals._received).handle(SimpleNamespace(getNumber=lambda: 2))
        assert signals.wait(0.1) is None, "the JVM got the same Ctrl-C"
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wait(10.0) == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is before


def test_run_without_a_query_is_an_error() -> None:
    with raises(EhBalanceError, "EHB_CALL_INVALID", function="run"):
        run()
