"""Shows this package's errors in Spark as one line instead of a worker's 40-line traceback.

Spark's Python workers send the text of a traceback to the JVM, which puts its own error class before the text and its
SQLSTATE after it. `single_line_errors` makes a worker send only the error's line.
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
    """Show an `EhBalanceError` in Spark as one line, and log its traceback at DEBUG. Other errors keep their
    traceback."""
    try:
        yield
    except EhBalanceError as error:
        if _in_worker():
            _LOG.debug("error sent to Spark as one line", exc_info=error)
            _replace_next_error(line(error))
        raise


def line(error: EhBalanceError) -> str:
    """The class and text of `error`."""
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def _in_worker() -> bool:
    """Whether this process is one of Spark's Python workers, which end with their first error, rather than a user's
    program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _replace_next_error(text: str) -> None:
    """Make Spark's `handle_worker_exception` send `text` as the next and last error of this process.

    Spark 4.0 to 4.3 send the text with `write_with_length`. A version that does not do so still sends the traceback.
    """
    util: Any = importlib.import_module("pyspark.util")
    send = getattr(util, "write_with_length", None)

    def send_text(traceback: bytes, stream: IO[bytes]) -> None:
        util.write_with_length = send
        send(text.encode("utf-8"), stream)  # type: ignore[misc]

    if send is not None:
        util.write_with_length = send_text
