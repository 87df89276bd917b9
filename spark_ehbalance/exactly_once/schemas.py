"""Whether rows fit into a Delta table, and the schema with which MERGE takes them as an append does. Pure.

MERGE casts to the table's types: 21.75 into INT is 21. An append refuses that, so it is refused here, by the rules of
Delta's append (`SchemaMergingUtils.mergeSchemas`): columns and fields go by name in any case and order; missing ones
are null; types must be the same. It takes two types for one only where nothing can be lost: what Parquet stores alike,
and NULL without a type.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
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
    StructField,
    StructType,
    TimestampNTZType,
)

from spark_ehbalance.errors import TargetError

#: The narrowest first. Parquet stores the first three alike.
_INTEGERS: tuple[DataType, ...] = (ByteType(), ShortType(), IntegerType(), LongType())
_STORED_ALIKE = _INTEGERS[:3]

#: Digits of a decimal that holds an integer, for type widening.
_DIGITS: dict[DataType, int] = {ByteType(): 10, ShortType(): 10, IntegerType(): 10, LongType(): 20}


@dataclass(frozen=True, slots=True)
class Fit:
    """How rows are fitted to a table. With `evolves` its schema is changed: columns and fields are added, those without
    a type get one, and if it `widens`, as a table with type widening does, types become wider."""

    target: str
    evolves: bool = False
    widens: bool = False

    def schema(self, rows: StructType, table: StructType) -> StructType:
        """The schema of `rows` with the table's types and nested fields, for `DataFrame.to`. Columns that the rows lack
        are left out, so that they get their defaults.

        Raises `TargetError` for a column that an append refuses.
        """
        names = _by_name(rows)
        there = StructType([field for field in table if field.name.lower() in names])
        return self._struct(rows, there, "", in_collection=False)

    def _struct(self, rows: StructType, table: StructType, path: str, *, in_collection: bool) -> StructType:
        given, known = _by_name(rows), _by_name(table)
        fields = []
        for field in table:
            found = given.get(field.name.lower())
            column = path + field.name
            type_ = self._type(found.dataType, field.dataType, column, in_collection) if found else field.dataType
            fields.append(StructField(field.name, type_))
        new = [field for field in rows if field.name.lower() not in known]
        if new and not self.evolves:
            raise TargetError(
                f"target {self.target!r}: column {path}{new[0].name} is in the frame and not in the table: drop it, or "
                "add it to the table (write_once: mergeSchema=True)"
            )
        return StructType([*fields, *(StructField(field.name, field.dataType) for field in new)])

    def _type(self, rows: DataType, table: DataType, path: str, in_collection: bool) -> DataType:
        match rows, table:
            case StructType(), StructType():
                return self._struct(rows, table, f"{path}.", in_collection=in_collection)
            case ArrayType(), ArrayType():
                return ArrayType(self._type(rows.elementType, table.elementType, f"{path}.element", True))
            case MapType(), MapType():
                return MapType(
                    self._type(rows.keyType, table.keyType, f"{path}.key", True),
                    self._type(rows.valueType, table.valueType, f"{path}.value", True),
                )
        if rows == table or (isinstance(rows, NullType) and not in_collection) or _narrower(rows, table):
            return table
        if self.evolves and (isinstance(table, NullType) or (self.widens and _widened(table, rows))):
            return rows
        raise TargetError(
            f"target {self.target!r}: column {path} is {rows.simpleString()} in the frame and {table.simpleString()} "
            "in the table: cast it in the frame, if no value is lost by that"
        )


def _by_name(struct: StructType) -> dict[str, StructField]:
    return {field.name.lower(): field for field in struct}


def _narrower(rows: DataType, table: DataType) -> bool:
    """Whether an append writes `rows` as they are into a wider column."""
    return table in _STORED_ALIKE and rows in _STORED_ALIKE[: _STORED_ALIKE.index(table)]


def _widened(table: DataType, rows: DataType) -> bool:
    """Whether type widening changes the column of the `table` to the type of the `rows`."""
    match table, rows:
        case DecimalType(), DecimalType():
            wider = rows.precision - rows.scale >= table.precision - table.scale
            return wider and rows.scale >= table.scale
        case _, DecimalType():
            return table in _DIGITS and rows.precision - rows.scale >= _DIGITS[table]
        case _, DoubleType():
            return table in (*_STORED_ALIKE, FloatType())
        case DateType(), TimestampNTZType():
            return True
    return rows in _INTEGERS and table in _INTEGERS[: _INTEGERS.index(rows)]
