"""Reads several ranges in one task at once, so that none waits for another's connection or for its events."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")

#: Reads one range; ends early, at its next wait, when the event is set.
Reader = Callable[[threading.Event], Generator[_T, None, None]]


def read_together(readers: Sequence[Reader[_T]]) -> Iterator[_T]:
    """What all `readers` yield, as it comes; in each reader's own order.

    Raises what the first reader raises. Whether it ends by that, by itself or by being closed: the readers have ended
    then, so that whatever they keep for the next task is in nobody's hands.
    """
    ended = threading.Event()
    if len(readers) == 1:
        yield from readers[0](ended)
        return
    # One place: a task must not hold more than its consumer can take, and each thread has one item more in its hand.
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
    """A reader has ended, by itself or by an error."""

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
    except BaseException as raised:  # of whatever kind: the task waits for this reader's end
        error = raised
    arrived.put(_End(error))
