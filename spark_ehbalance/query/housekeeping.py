"""A thread for work on which no lease depends: maintenance takes seconds, which would delay a keeper's renewals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.text import logger

_LOG = logger(__name__)


class Housekeeping:
    """Runs jobs one after the other. All methods must be called from the same thread; only `finish` waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: list[Callable[[], object]] = []
        self._error: BaseException | None = None
        self._finishing = False
        self._thread: threading.Thread | None = None
        self._problem: str | None = None  # the last job's error if the store was unavailable

    def do(self, job: Callable[[], object]) -> None:
        """Queue `job`. If the store is unavailable, the job's error is logged, as a warning if it differs from the last
        job's. Raises any other error of an earlier job."""
        self.check()
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ehbalance-housekeeping", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise the error of a failed job."""
        if self._error is not None:
            raise self._error

    @property
    def busy(self) -> bool:
        """Whether jobs are pending."""
        with self._changed:
            return bool(self._jobs)

    def finish(self, timeout: float) -> None:
        """Wait for all jobs, at most `timeout` seconds, and end the thread. Must be the last call."""
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
