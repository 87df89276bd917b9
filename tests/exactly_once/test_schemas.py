"""Rows that fit into a table: the type pairs that an append with Delta 4.4 accepted and rejected."""

from __future__ import annotations

import itertools
import re

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once.schemas import SchemaMatcher
from tests.raising import raises

INT, STRING = IntegerType(), StringType()
ATOMIC: list[DataType] = [
    BooleanType(), ByteType(), ShortType(), INT, LongType(), FloatType(), DoubleType(),
    DecimalType(10, 2), DecimalType(12, 2), DecimalType(12, 4), DecimalType(20, 0),
    STRING, BinaryType(), DateType(), TimestampType(), TimestampNTZType(), VariantType(),
]  # fmt: skip


def struct(**fields: DataType) -> StructType:
    result = StructType()
    for name, type_ in fields.items():
        result.add(name, type_)
    return result


ONE, TWO, TURNED = struct(a=INT), struct(a=INT, b=STRING), struct(B=STRING, A=INT)
NESTED: list[DataType] = [
    ArrayType(INT), ArrayType(LongType()), ArrayType(ONE), ArrayType(TWO), ArrayType(TURNED),
    MapType(STRING, INT), MapType(STRING, LongType()), MapType(STRING, ONE), MapType(STRING, TWO),
    MapType(ONE, INT), MapType(TWO, INT),
    ONE, TWO, TURNED, struct(a=LongType()),
]  # fmt: skip

#: Column type → other types that an append accepts.
TAKEN: dict[DataType, list[DataType]] = {
    TWO: [ONE, TURNED],
    TURNED: [ONE, TWO],
    ArrayType(TWO): [ArrayType(ONE), ArrayType(TURNED)],
    ArrayType(TURNED): [ArrayType(ONE), ArrayType(TWO)],
    MapType(STRING, TWO): [MapType(STRING, ONE)],
    MapType(TWO, INT): [MapType(ONE, INT)],
}


def fitted(fit: SchemaMatcher, rows: DataType, table: DataType) -> DataType | None:
    """The type that a column gets; None if it is rejected."""
    try:
        return fit.schema(struct(C=rows), struct(c=table))["c"].dataType
    except TargetError:
        return None


@pytest.mark.parametrize("types", [ATOMIC, NESTED], ids=["atomic", "nested"])
def test_types_accepted_by_an_append_become_the_tables_types(types: list[DataType]) -> None:
    for table, rows in itertools.product(types, types):
        taken = rows == table or rows in TAKEN.get(table, [])
        assert fitted(SchemaMatcher("t"), rows, table) == (table if taken else None), (rows, table)


def test_untyped_null_is_accepted_except_in_arrays_and_maps() -> None:
    for table in ATOMIC + NESTED:
        assert fitted(SchemaMatcher("t"), NullType(), table) == table
        assert fitted(SchemaMatcher("t"), struct(a=NullType()), struct(a=table)) == struct(a=table)
        assert fitted(SchemaMatcher("t"), ArrayType(NullType()), ArrayType(table)) is None
        assert (
            fitted(SchemaMatcher("t"), MapType(STRING, struct(a=NullType())), MapType(STRING, struct(a=table))) is None
        )


def test_new_columns_are_appended_only_with_schema_evolution() -> None:
    rows = struct(new=INT, s=ArrayType(struct(c=INT, a=INT)))
    table = struct(s=ArrayType(struct(a=INT, b=INT)), other=STRING)
    with raises(
        TargetError, "EHB_TARGET_SCHEMA_MISMATCH", column="s.element.c", problem=re.compile("not in the table")
    ):
        SchemaMatcher("t").schema(rows, table)
    expected = struct(s=ArrayType(struct(a=INT, b=INT, c=INT)), new=INT)
    assert SchemaMatcher("t", evolves=True).schema(rows, table) == expected


def test_error_names_the_target_the_column_and_both_types() -> None:
    rows, table = struct(s=struct(m=MapType(STRING, DoubleType()))), struct(s=struct(m=MapType(STRING, INT)))
    problem = re.compile("double in the frame .* int in the table")
    with raises(TargetError, "EHB_TARGET_SCHEMA_MISMATCH", target="t", column="s.m.value", problem=problem):
        SchemaMatcher("t").schema(rows, table)


def test_nullability_is_left_for_delta_to_check() -> None:
    table = StructType().add("a", INT, nullable=False)
    assert SchemaMatcher("t").schema(struct(a=INT), table) == struct(a=INT)
