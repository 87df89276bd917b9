"""Work that no lease depends on, in a thread of its own: to tidy up takes a storage account seconds, in which a keeper
could be late with its renewals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.text import logger

_LOG = logger(__name__)


class Housekeeping:
    """Does one job after the other. All calls come from one thread, and none of them waits, except `finish`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: list[Callable[[], object]] = []
        self._error: BaseException | None = None
        self._finishing = False
        self._thread: threading.Thread | None = None
        self._problem: str | None = None  # of the last job

    def do(self, job: Callable[[], object]) -> None:
        """Do `job` after those that are not done yet. That the store is not available is logged: a warning when that
        begins, or for another reason than before.

        Raises whatever else an earlier job has raised.
        """
        self.check()
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ehbalance-housekeeping", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise what a job has raised."""
        if self._error is not None:
            raise self._error

    @property
    def busy(self) -> bool:
        """Whether there are jobs that are not done yet."""
        with self._changed:
            return bool(self._jobs)

    def finish(self, timeout: float) -> None:
        """Wait until all jobs are done, `timeout` seconds at most, and end the thread. Called last."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._jobs or self._error is not None, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._jobs) or self._finishing)
                if not self._jobs:
                    return
                job = self._jobs[0]
            try:
                job()
                self._problem = None
            except StoreUnavailableError as error:
                _LOG.log(logging.INFO if str(error) == self._problem else logging.WARNING, "%s", error)
                self._problem = str(error)
            except BaseException as error:  # also a panic in a Rust library
                self._error = error
            with self._changed:
                del self._jobs[0]
                self._changed.notify_all()
            if self._error is not None:
                return
