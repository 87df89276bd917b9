"""Receives SIGTERM and SIGINT while `run` waits, in whichever of the driver's processes they arrive."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from spark_ehbalance.spark.sessions import SPARK_ERRORS

_NUMBERS = (signal.SIGTERM, signal.SIGINT)

#: Start of the command line of a JVM that serves a single program (spark-submit, pyspark, YARN). A JVM that serves
#: several programs, as in a notebook service, keeps its own handlers.
_SINGLE_PROGRAM = "org.apache.spark.deploy."


class StopSignals:
    """Receives signals sent to this process or to its JVM. `received` must be entered in the main thread.

    Without this class, pyspark's SIGINT handler would cancel the running batch, and SIGTERM would shut down the JVM in
    the middle of the batch. The handlers of this class only queue the signal, so they interrupt nothing.
    """

    def __init__(self, jvm: Any) -> None:
        """`jvm` is the queries' JVM; None with Spark Connect."""
        self._jvm = jvm
        self._received = queue.SimpleQueue[tuple[str, int]]()
        self._counted = Counter[str]()
        self._reported = 0

    @contextlib.contextmanager
    def received(self) -> Iterator[StopSignals]:
        """Receive signals until the end of the block, which restores the former handlers."""
        with contextlib.ExitStack() as handlers:
            if threading.current_thread() is threading.main_thread():
                for number in _NUMBERS:
                    before = signal.signal(number, lambda number, _: self._received.put(("Python", number)))
                    handlers.callback(signal.signal, number, signal.SIG_DFL if before is None else before)
            if self._jvm is not None:
                with contextlib.suppress(*SPARK_ERRORS):  # a platform may forbid handlers in the JVM
                    self._receive_in_jvm(handlers)
            yield self

    def wait(self, seconds: float) -> int | None:
        """Wait for a signal, and return its number; None if none arrives within `seconds`. A signal to both processes,
        such as Ctrl-C, counts once."""
        with contextlib.suppress(queue.Empty):
            process, number = self._received.get(timeout=seconds)
            self._counted[process] += 1
            if self._counted[process] > self._reported:
                self._reported += 1
                return number
        return None

    def _receive_in_jvm(self, handlers: contextlib.ExitStack) -> None:
        from pyspark import SparkContext
        from pyspark.java_gateway import ensure_callback_server_started

        if not self._jvm.System.getProperty("sun.java.command", "").startswith(_SINGLE_PROGRAM):
            return
        ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call] # for calls from the JVM
        java = self._jvm.sun.misc.Signal
        for number in _NUMBERS:
            kind = java(number.name.removeprefix("SIG"))
            handlers.callback(_restore, java, kind, java.handle(kind, _JavaHandler(self._received)))


def _restore(java: Any, kind: Any, before: Any) -> None:
    with contextlib.suppress(*SPARK_ERRORS, OSError):  # the JVM may have ended
        java.handle(kind, before)


class _JavaHandler:
    """The handler that the JVM calls."""

    def __init__(self, received: queue.SimpleQueue[tuple[str, int]]) -> None:
        self._received = received

    def handle(self, kind: Any) -> None:
        self._received.put(("JVM", kind.getNumber()))

    class Java:
        """The Java interface, for py4j."""

        implements = ("sun.misc.SignalHandler",)
