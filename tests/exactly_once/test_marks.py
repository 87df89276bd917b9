"""Marks: the missing events of a batch, and a writer's cache."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.exactly_once.marks import LoggedCommit, SequenceRange, TransactionCache, missing, skipped

NUMBERS = st.integers(0, 20)
EXTENTS = st.tuples(NUMBERS, NUMBERS).map(lambda pair: SequenceRange(min(pair), max(pair)))
PARTITIONS = st.sampled_from("012")


def numbers(extent: SequenceRange | None) -> set[int]:
    return set(range(extent.start, extent.end)) if extent else set()


@given(st.dictionaries(PARTITIONS, EXTENTS), st.dictionaries(PARTITIONS, NUMBERS))
def test_unwritten_events_start_at_the_mark(read: dict[str, SequenceRange], marks: dict[str, int]) -> None:
    found, gaps = missing(read, marks), skipped(read, marks)
    for partition, range_ in read.items():
        mark = marks.get(partition, 0)
        assert numbers(found.get(partition)) == {number for number in numbers(range_) if number >= mark}
        assert numbers(gaps.get(partition)) == (set(range(mark, range_.start)) if partition in marks else set())
    assert found.keys() <= read.keys()
    assert all(range_.end == read[partition].end for partition, range_ in found.items()), "the mark will be the end"


COMMITS = st.lists(st.dictionaries(st.sampled_from("abc"), NUMBERS, max_size=3))


@given(COMMITS, st.integers(0, 5), st.sets(st.sampled_from("abc")))
def test_cache_plus_later_log_equals_the_whole_log(log: list[dict[str, int]], begin: int, names: set[str]) -> None:
    def at(version: int) -> dict[str, int | None]:
        newest: dict[str, int | None] = dict.fromkeys("abc")
        for commit in log[: version + 1]:
            newest |= commit
        return {name: newest[name] for name in names}

    begin = min(begin, len(log))
    cache = TransactionCache("table", begin - 1).with_identifiers(at(begin - 1))
    later = [LoggedCommit(version, identifiers) for version, identifiers in enumerate(log)][begin:]
    cache = cache.after(later)
    assert cache.identifiers == at(len(log) - 1)
    assert cache.version == len(log) - 1
    with pytest.raises(ValueError, match="does not directly follow"):
        cache.after([LoggedCommit(cache.version + 2, {})])


def test_log_file_is_parsed() -> None:
    actions = [
        {"commitInfo": {"operation": "WRITE", "operationParameters": {"txn": '{"txn":{"appId":"no","version":1}}'}}},
        {"txn": {"appId": 'ehb/n s/ü"\n/0', "version": 2**62, "lastUpdated": 5}},
        {"add": {"path": "x"}},
        {"txn": {"appId": "query", "version": 3}},
    ]
    text = "\n".join(json.dumps(action, ensure_ascii=False, separators=(",", ":")) for action in actions)
    assert LoggedCommit.parse(7, text + "\n") == LoggedCommit(7, {'ehb/n s/ü"\n/0': 2**62, "query": 3})
    assert LoggedCommit.parse(0, "") == LoggedCommit(0, {})
