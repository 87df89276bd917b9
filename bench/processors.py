"""What a group costs its storage: the requests of queries that share a hub by way of the `blob` store, beside those of
unmodified Python consumers with `BlobCheckpointStore`, which share another one.

Both do the same: as many members look after as many partitions at the same interval, and finish the same events in the
same batches, as they come in bursts. After each batch a consumer checkpoints, as the SDK's samples do, and a query is
told that its sink has finished it, as by Spark. Both run at the same time, each behind a proxy that counts.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.common import Bar, Log, Row
from chaos.storage.azurite import ACCOUNT, azurite, make_container, missing
from chaos.storage.faults import Kind, Request
from chaos.storage.proxy import StorageProxy
from spark_ehbalance.emulator import Emulator
from tests.members import repeating
from tests.processors.group import MixedGroup

SUBJECT = "processors"

#: Intervals until an ownership expires, as all SDKs but .NET's have it by default.
_EXPIRY = 6

#: Seconds between two bursts of events, and how many each partition gets. The Python consumer receives from one
#: partition after the other, and stays with one as long as something comes within 0.2 s, up to 300 times: with 20
#: events a second in each of 8 partitions it comes back after two minutes, and writes no checkpoint before.
_BURST, _EVENTS = 2.0, 10

_PARTS = ("lists", "reads", "ownership writes", "checkpoint writes", "others")


class Side(NamedTuple):
    """The members of one kind, and the proxy before their storage."""

    group: MixedGroup
    proxy: StorageProxy


def measure(folder: Path, log: Log, *, members: int, partitions: int, interval: float, intervals: int) -> Iterator[Row]:
    """Count for `intervals` of so many seconds without events, and then with them."""
    if problem := missing():
        log(f"processors: nothing is counted. {problem}")
        return
    with azurite() as storage, contextlib.ExitStack() as stack:
        queries, consumers = (
            _side(stack, storage, folder / who, interval, partitions) for who in ("queries", "consumers")
        )
        for number in range(members):
            queries.group.query(f"query-{number}", strategy="greedy")
            consumers.group.consumer(f"consumer-{number}", strategy="greedy", max_wait_time=None)
        log(f"processors: {members} queries and {members} consumers share {partitions} partitions each")
        for side in (queries, consumers):
            side.group.append(_EVENTS)
            side.group.wait_shared(*[partitions // members] * members, timeout=300)
            side.group.wait_read()
        time.sleep(min(intervals, _EXPIRY) * interval)  # renewals then come at their usual times
        log(f"processors: {intervals} intervals of {interval:g} s without events")
        yield from _rows("idle", *_counted(queries, consumers, intervals * interval))
        log(f"processors: {intervals} intervals with events")
        with repeating(_BURST, partial(_burst, queries, consumers)):
            yield from _rows("with events", *_counted(queries, consumers, intervals * interval))
        for side in (queries, consumers):
            side.group.wait_read()


def _side(stack: contextlib.ExitStack, storage: str, place: Path, interval: float, partitions: int) -> Side:
    """A hub, a container behind a proxy, and a group without members."""
    place.mkdir()
    make_container(storage, place.name)
    proxy = stack.enter_context(StorageProxy(storage))
    hub = stack.enter_context(Emulator({"hub": partitions}))
    times = {"interval": interval, "expiry": _EXPIRY * interval}
    group = MixedGroup(hub, f"{proxy.address}/{ACCOUNT}", place.name, place, partitions=partitions, **times)
    stack.callback(group.close)
    return Side(group, proxy)


def _burst(*sides: Side) -> None:
    for side in sides:
        side.group.append(_EVENTS)


def _counted(queries: Side, consumers: Side, seconds: float) -> list[Counter[str]]:
    """What each asks for in a day, by part, as counted for so many seconds."""
    sides = (queries, consumers)
    before, began = [len(side.proxy.requests()) for side in sides], time.monotonic()
    time.sleep(seconds)
    found = [side.proxy.requests(first) for side, first in zip(sides, before, strict=True)]
    a_day = 86_400 / (time.monotonic() - began)
    counts = (Counter(map(_part, requests)) for requests in found)
    return [Counter({part: round(a_day * count) for part, count in each.items()}) for each in counts]


def _part(request: Request) -> str:
    if request.kind is Kind.LIST:
        return "lists"
    if request.kind in (Kind.GET, Kind.HEAD):
        return "reads"
    folder = request.path.split("/")[-2:-1]  # as `layout` names the blobs
    return f"{folder[0]} writes" if folder and request.kind in (Kind.PUT, Kind.CONDITIONAL_PUT) else "others"


def _rows(load: str, queries: Mapping[str, int], consumers: Mapping[str, int]) -> Iterator[Row]:
    for part in _PARTS:
        if queries[part] or consumers[part]:
            compared = {"Python consumers": (float(consumers[part]),)}
            yield Row(SUBJECT, f"{load}: {part}", "a day", (float(queries[part]),), compared=compared)
    ours, theirs = sum(queries.values()), sum(consumers.values())
    rare = theirs - consumers["checkpoint writes"] + queries["checkpoint writes"]
    yield Row(
        SUBJECT,
        f"{load}: all, by those of Python consumers",
        "times",
        (ours / theirs,),
        Bar("most", 0.5),
        {"of consumers that checkpoint as rarely as queries": (ours / rare,)} if load != "idle" else {},
    )
