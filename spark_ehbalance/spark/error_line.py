"""What Spark shows of our errors: one line, instead of the forty of a worker's traceback.

Spark's Python workers send the text of a traceback, with a line break at its end, to the JVM, which adds its error
class in front and its SQLSTATE behind. So our line would be the last but one of many. `single_line_errors` makes a
worker send the line alone: all is then one line, from the error class to the SQLSTATE.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import IO, Any

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.text import logger

_LOG = logger(__name__)


@contextlib.contextmanager
def single_line_errors() -> Iterator[None]:
    """Around whatever Spark calls: an `EhBalanceError` that leaves it is shown in one line. Others, which are faults of
    ours, keep their traceback; of ours it is logged at DEBUG."""
    try:
        yield
    except EhBalanceError as error:
        if _in_worker():
            _LOG.debug("this is told to Spark", exc_info=error)
            _send_instead(line(error))
        raise


def line(error: EhBalanceError) -> str:
    """The line for `error`: its class and its text."""
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def _in_worker() -> bool:
    """Whether this is a process of Spark's for Python, which ends with the first error, and no user's program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _send_instead(text: str) -> None:
    """Make Spark's `handle_worker_exception` send `text` as the next error of this process, which is its last.

    All versions from 4.0 to 4.3 make the text in ways of their own, and send it by this function; a version that does
    not, goes on to send the traceback.
    """
    util: Any = importlib.import_module("pyspark.util")
    send = getattr(util, "write_with_length", None)

    def instead(traceback: bytes, stream: IO[bytes]) -> None:
        util.write_with_length = send
        send(text.encode("utf-8"), stream)  # type: ignore[misc]

    if send is not None:
        util.write_with_length = instead
