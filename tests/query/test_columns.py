"""Columns selected by a schema."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.rows import ARROW_SCHEMA, SPARK_SCHEMA, record_batch
from spark_ehbalance.query.columns import ALL_COLUMNS, Columns
from tests.raising import raises

TYPES = dict(column.split(" ") for column in SPARK_SCHEMA.split(", "))

bodies = st.lists(st.none() | st.binary(max_size=9), max_size=9)


def batch_of(bodies: list[bytes | None]) -> pa.RecordBatch:
    events = (
        (body, {b"x-opt-sequence-number": number, b"x-opt-publisher": b"me"}, {b"key": number})
        for number, body in enumerate(bodies)
    )
    return record_batch(events, "7", json_properties=False)


@settings(deadline=None)  # the first example pays for imports
@given(bodies, st.lists(st.sampled_from(list(TYPES)), min_size=1, unique=True))
def test_any_columns_can_be_selected_in_any_order(bodies: list[bytes | None], names: list[str]) -> None:
    batch = batch_of(bodies)
    found = Columns.from_schema((name, TYPES[name]) for name in names).select(batch)
    assert found.schema.names == names
    assert all(found.column(name).equals(batch.column(name)) for name in names)


def test_selecting_all_columns_copies_nothing() -> None:
    batch = batch_of([b"a"])
    assert Columns.from_schema(TYPES.items()) == ALL_COLUMNS
    assert ALL_COLUMNS.select(batch) is batch
    assert batch.schema == ARROW_SCHEMA


@given(bodies, st.integers(0, 20))
def test_string_body_contains_the_same_bytes(bodies: list[bytes | None], start: int) -> None:
    batch = batch_of(bodies).slice(start)
    text = Columns.from_schema([("body", "string")]).select(batch).column("body")
    assert text.type == pa.string()
    assert text.view(pa.binary()).equals(batch.column("body"))


@pytest.mark.parametrize(
    ("schema", "column", "allowed"),
    [
        ([("value", "binary")], "value", r"body binary, .* sequenceNumber long, "),
        ([("body", "int")], "body", r"body may also be a string"),
        ([("sequencenumber", "bigint")], "sequencenumber", "sequenceNumber"),
        ([("offset", "bigint")], "offset", "offset string"),
        ([("partition", "string")] * 2, "partition", "each column once"),
        ([], "(none)", "at least one"),
    ],
)
def test_unknown_columns_and_types_are_rejected(schema: list[tuple[str, str]], column: str, allowed: str) -> None:
    with raises(OptionError, "EHB_COLUMN_INVALID", column=column, allowed=re.compile(allowed)):
        Columns.from_schema(schema)
