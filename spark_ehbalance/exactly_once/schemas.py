"""Match rows to a Delta table's schema for MERGE. Pure.

MERGE casts to the table's types: 21.75 becomes 21 in an INT column. An append rejects that, and so does this module.
Columns and fields are matched by name, ignoring case and order. Missing fields are null. Types must be equal, except
that an untyped NULL matches every type.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from spark_ehbalance.errors import TargetError


@dataclass(frozen=True, slots=True)
class SchemaMatcher:
    """Matches rows to the table `target`. With `evolves`, new columns and fields are added to the table's schema."""

    target: str
    evolves: bool = False

    def schema(self, rows: StructType, table: StructType) -> StructType:
        """The schema of `rows` with the table's types and nested fields, for `DataFrame.to`. Columns that the rows lack
        are omitted, so that they get their defaults.

        Raises `TargetError` for a column that an append would reject.
        """
        names = _by_name(rows)
        there = StructType([field for field in table if field.name.lower() in names])
        return self._struct(rows, there, "", in_collection=False)

    def _struct(self, rows: StructType, table: StructType, path: str, *, in_collection: bool) -> StructType:
        row_fields, known = _by_name(rows), _by_name(table)
        fields = []
        for field in table:
            found = row_fields.get(field.name.lower())
            column = path + field.name
            type_ = self._type(found.dataType, field.dataType, column, in_collection) if found else field.dataType
            fields.append(StructField(field.name, type_))
        new = [field for field in rows if field.name.lower() not in known]
        if new and not self.evolves:
            raise self._mismatch(path + new[0].name, "is in the frame but not in the table")
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
        if rows == table or (isinstance(rows, NullType) and not in_collection):
            return table
        types = f"is {rows.simpleString()} in the frame and {table.simpleString()} in the table"
        raise self._mismatch(path, types)

    def _mismatch(self, column: str, problem: str) -> TargetError:
        return TargetError("EHB_TARGET_SCHEMA_MISMATCH", target=self.target, column=column, problem=problem)


def _by_name(struct: StructType) -> dict[str, StructField]:
    return {field.name.lower(): field for field in struct}
