"""Read the ranges of one task concurrently, so that no range waits for another range's connection or events."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")

#: Reads one range. Once the event is set, reading ends at the next wait.
Reader = Callable[[threading.Event], Generator[_T, None, object]]


def read_concurrently(readers: Sequence[Reader[_T]]) -> Iterator[_T]:
    """The items of all `readers` in order of arrival, so the items of each reader stay in order.

    Raises the error of the first reader that fails. All readers have ended when the iteration ends, so no thread still
    uses a receiver that is kept for the next task.
    """
    ended = threading.Event()
    if len(readers) == 1:
        yield from readers[0](ended)
        return
    # One item only, to bound memory: each thread holds one more.
    arrived: queue.Queue[_T | _End] = queue.Queue(1)
    threads = [
        threading.Thread(target=_read, args=(reader, ended, arrived), name="ehbalance-reader", daemon=True)
        for reader in readers
    ]
    running = 0
    try:
        for thread in threads:
            thread.start()
            running += 1
        while running:
            item = arrived.get()
            if not isinstance(item, _End):
                yield item
                continue
            running -= 1
            if item.error is not None:
                raise item.error
    finally:
        ended.set()
        while running:
            running -= isinstance(arrived.get(), _End)


class _End:
    """The end of a reader, with its error if it failed."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def _read(reader: Reader[_T], ended: threading.Event, arrived: queue.Queue[_T | _End]) -> None:
    error = None
    try:
        with contextlib.closing(reader(ended)) as items:
            for item in items:
                arrived.put(item)
                if ended.is_set():
                    break
    except BaseException as raised:  # every error, because `read_concurrently` waits for `_End`
        error = raised
    arrived.put(_End(error))
