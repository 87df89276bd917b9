"""Recognizes offsets of `ehbalance` sources among the offsets that Spark logged for a batch."""

from __future__ import annotations

import json

from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.spark.offset_log import end_offsets, sources

ONE, TWO = (StreamOffset("owner", lineage=lineage) for lineage in ("one", "two"))

#: Offsets from other sources, or from a damaged or hostile checkpoint.
OTHERS = ["7", "null", "-", '{"topic":{"0":5}}', "[" * 100_000, '{"a":' * 100_000]


def text(offset: StreamOffset) -> str:
    return json.dumps(offset.to_json())


def test_source_that_is_read_several_times_counts_once() -> None:
    assert sources([text(ONE)] * 3) == [ONE]
    assert sources([text(ONE), text(TWO), text(ONE)]) == [ONE, TWO]


def test_offsets_of_other_sources_are_ignored_at_any_depth() -> None:
    assert sources([*OTHERS, text(ONE), *OTHERS]) == [ONE]
    assert end_offsets({"sources": [{"endOffset": offset} for offset in (*OTHERS, text(ONE))]}) == [ONE]
