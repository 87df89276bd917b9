"""The columns that a query selects with `.schema(...)`. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.rows import SPARK_SCHEMA

_BODY, _TEXT = "body", "string"

#: The type of each column, as Spark writes it.
_TYPES = dict(column.split(" ") for column in SPARK_SCHEMA.split(", "))


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of a task's columns, in order. With `text_body`, the body is a string."""

    names: tuple[str, ...] = tuple(_TYPES)
    text_body: bool = False

    @classmethod
    def from_schema(cls, schema: Iterable[tuple[str, str]]) -> Columns:
        """The columns of `schema`, given as pairs of name and type. Raises `OptionError` if a column is unknown."""
        names = []
        text_body = False
        for name, kind in schema:
            if (name, kind) == (_BODY, _TEXT):
                text_body = True
            elif _TYPES.get(name) != kind:
                allowed = f"{SPARK_SCHEMA.replace('bigint', 'long')}; in any order, and body may also be a string"
                problem = f".schema() requests it as {kind}"
                raise OptionError("EHB_COLUMN_INVALID", column=name, problem=problem, allowed=allowed)
            names.append(name)
        if not names or len(set(names)) < len(names):
            problem = f".schema() requests {', '.join(names) or 'no column'}"
            column = next((name for name in names if names.count(name) > 1), "(none)")
            allowed = "each column once, and at least one"
            raise OptionError("EHB_COLUMN_INVALID", column=column, problem=problem, allowed=allowed)
        return cls(tuple(names), text_body)

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with these columns only."""
        if self == ALL_COLUMNS:
            return batch
        columns = {name: batch.column(name) for name in self.names}
        if self.text_body:
            columns[_BODY] = _as_text(columns[_BODY])
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


ALL_COLUMNS = Columns()


def _as_text(body: pa.BinaryArray) -> pa.StringArray:
    """The same bytes as text, unchecked like Spark's `CAST(body AS STRING)`."""
    return pa.StringArray.from_buffers(len(body), *body.buffers()[1:], body.buffers()[0], body.null_count, body.offset)
