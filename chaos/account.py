"""Compares the events read with the events sent, and finds the fault that explains each duplicate. Only `Sink` does
I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from chaos.faults import OUTAGE

#: Seconds from a batch's write to its checkpoint on a busy machine. A fault in this time also interrupts the batch,
#: which is then written but not checkpointed.
GRACE = 5.0

#: Seconds from a batch's planning to the call of the sink.
_PLANNING = 2.0


@dataclass(frozen=True)
class WrittenBatch:
    """A batch, as a file of the sink. `events` are (partition, sequence number, body), in order. Times are wall-clock
    times."""

    owner: str
    run: str
    number: int
    began: float
    written: float
    epochs: Mapping[str, int]
    events: Sequence[tuple[str, int, str]]


@dataclass(frozen=True)
class Fault:
    """A fault between two wall-clock times. It affects one query, or all queries if `query` is None."""

    kind: str
    query: str | None
    began: float
    ended: float


@dataclass
class Account:
    """The result of a comparison. `explained` counts duplicates by the kind of fault that explains them."""

    sent: int = 0
    read: int = 0
    missing: list[tuple[str, int]] = field(default_factory=list)
    foreign: int = 0  # rows that match no event of the hub
    duplicates: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not (self.missing or self.foreign or self.unexplained or self.disorder)


@dataclass
class TargetAccount:
    """The result for a table that must contain every event once."""

    rows: int = 0
    missing: list[tuple[str, int]] = field(default_factory=list)
    duplicates: list[tuple[str, int]] = field(default_factory=list)
    foreign: int = 0  # rows that match no event of the hub

    @property
    def passed(self) -> bool:
        return not (self.missing or self.duplicates or self.foreign)


def account_target(rows: Iterable[tuple[str, int, str]], sent: Mapping[str, Sequence[int]]) -> TargetAccount:
    """Compare `rows` (partition, sequence number, body) with `sent`, which is as in `account`."""
    expected = {(partition, n): str(body) for partition, bodies in sent.items() for n, body in enumerate(bodies)}
    held = Counter((partition, number, body) for partition, number, body in rows)
    events = Counter({(p, n): count for (p, n, body), count in held.items() if expected.get((p, n)) == body})
    return TargetAccount(
        rows=held.total(),
        missing=[event for event in expected if event not in events],
        duplicates=[event for event, count in events.items() if count > 1],
        foreign=held.total() - events.total(),
    )


class Sink:
    """The files that queries write into `folder`. Each file is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[str] = set()
        self.batches: list[WrittenBatch] = []
        self.read: dict[str, set[int]] = defaultdict(set)

    def poll(self) -> None:
        new = sorted(name for path in self._folder.glob("*.parquet") if (name := path.name) not in self._known)
        batches = [_batch(self._folder / name) for name in new]
        self._known.update(new)
        self.batches += batches
        for batch in batches:
            for partition, number, _ in batch.events:
                self.read[partition].add(number)

    def has_all(self, sent: Mapping[str, Collection[object]]) -> bool:
        return all(len(self.read[partition]) >= len(numbers) for partition, numbers in sent.items())


def _batch(path: Path) -> WrittenBatch:
    table = pq.read_table(path)
    about = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    columns = table.select(["partition", "sequenceNumber", "body", "epoch"]).to_pydict()
    return WrittenBatch(
        owner=about["owner"],
        run=about["run"],
        number=int(about["batch"]),
        began=float(about["began"]),
        written=float(path.name.split("-")[0]),
        epochs=dict(zip(columns["partition"], columns["epoch"], strict=True)),
        events=list(zip(columns["partition"], columns["sequenceNumber"], columns["body"], strict=True)),
    )


def account(batches: Iterable[WrittenBatch], sent: Mapping[str, Sequence[int]], faults: Iterable[Fault]) -> Account:
    """Compare `batches` with `sent`: partition → the events' bodies, as numbers, in the order of sequence numbers."""
    batches, faults = sorted(batches, key=lambda batch: batch.written), list(faults)
    copies: dict[tuple[str, int], list[WrittenBatch]] = defaultdict(list)
    result = Account(sent=sum(map(len, sent.values())))
    for batch in batches:
        for partition, number, body in batch.events:
            result.read += 1
            numbers = sent.get(partition, ())
            if number < len(numbers) and body == str(numbers[number]):
                copies[partition, number].append(batch)
            else:
                result.foreign += 1
    result.missing = [(p, n) for p, numbers in sent.items() for n in range(len(numbers)) if (p, n) not in copies]
    reasons = {id(batch): _find_interruption(batch, faults) for batch in batches}
    unexplained: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    by_id = {id(batch): batch for batch in batches}
    for (partition, number), found in copies.items():
        extra = len(found) - 1
        result.duplicates += extra
        kinds = [kind for batch in found if (kind := reasons[id(batch)]) is not None]
        result.explained.update(kinds[:extra])
        if len(kinds) < extra:
            unexplained[partition, tuple(map(id, found))].append(number)
    for (partition, ids), numbers in unexplained.items():
        copies_of = "; ".join(_describe(by_id[id_], partition) for id_ in ids)
        result.unexplained.append(
            f"partition {partition}, {min(numbers)} to {max(numbers)} ({len(numbers)}): {copies_of}"
        )
    result.disorder = _find_disorder(batches)
    return result


def _find_interruption(batch: WrittenBatch, faults: Iterable[Fault]) -> str | None:
    """The kind of fault that interrupted a batch between its planning and its checkpoint; None if there was none."""
    query, until = batch.owner.split(".")[0], batch.written + GRACE
    for fault in faults:
        if fault.kind == OUTAGE and fault.began <= until and fault.ended >= batch.written:
            until = max(until, fault.ended + GRACE)  # the checkpoint was delayed
    for fault in faults:
        if fault.query == query and fault.began <= until and fault.ended >= batch.began - _PLANNING:
            return fault.kind
    return None


def _describe(batch: WrittenBatch, partition: str) -> str:
    epoch = batch.epochs[partition]
    return f"{batch.owner} run {batch.run} batch {batch.number} epoch {epoch} {batch.began:.2f} to {batch.written:.2f}"


def _find_disorder(batches: Iterable[WrittenBatch]) -> list[str]:
    """Descriptions of the events whose sequence number does not increase within an owner's tenure. `batches` must be in
    the order in which they were written."""
    last: dict[tuple[str, str, int], int] = {}
    found = []
    for batch in batches:
        for partition, number, _ in batch.events:
            tenure = (batch.run, partition, batch.epochs[partition])
            if number <= last.get(tenure, -1):
                found.append(f"{number} after {last[tenure]}: {_describe(batch, partition)}")
            last[tenure] = number
    return found
