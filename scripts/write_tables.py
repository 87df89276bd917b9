"""Writes the documentation's tables of options and strategies from their declarations: python scripts/write_tables.py

A table stands between two comments in its page, `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from spark_ehbalance.source.options import BATCH, OPTIONS, SHARED, STRATEGY_OPTIONS, STREAM
from spark_ehbalance.source.scala_options import SCALA_OPTIONS, ScalaOption
from spark_ehbalance.strategies import DECLARATIONS, DEFAULT_STRATEGY
from spark_ehbalance.strategies.declaration import Declaration
from spark_ehbalance.values.declared import Declared

_DOCS = Path(__file__).parent.parent / "docs"
PAGES = (_DOCS / "options.md", _DOCS / "strategies.md", _DOCS / "migration.md")

_WHERE = {STREAM: "stream", SHARED: "shared", BATCH: "batch", "": "both"}


def options_table(options: Mapping[str, Declared]) -> str:
    rows = [(f"`{name}`", each.default, _WHERE[each.only], each.meaning) for name, each in options.items()]
    return _table(("option", "default", "for", "meaning"), rows)


def strategy_options_table(options: Mapping[str, Declared]) -> str:
    rows = [(f"`{name}`", each.default, each.meaning) for name, each in options.items()]
    return _table(("option", "default", "meaning"), rows)


def strategies_table(strategies: Mapping[str, Declaration]) -> str:
    """The default strategy comes first."""
    names = sorted(strategies, key=lambda name: (name != DEFAULT_STRATEGY, name))
    rows = [(f"`{name}`", strategies[name].origin, strategies[name].rule) for name in names]
    return _table(("`strategy`", "from", "how it shares"), rows)


def scala_options_table(options: Mapping[str, ScalaOption]) -> str:
    return _table(("Scala connector", "here"), [(f"`{name}`", _of_scala(each)) for name, each in options.items()])


def _of_scala(each: ScalaOption) -> str:
    if each.ours:
        return f"`{each.ours}`" + (f": {each.documented}" if each.documented else "")
    same = f"`{each.same}` is so in any case; else " if each.same else ""
    return f"{same}refused: {each.instead}"


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """`page` with each of its tables replaced. Raises `KeyError` for a name that is not in `tables`."""
    pattern = r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)"
    return re.sub(pattern, lambda found: found[1] + tables[found[2]] + found[3], page, flags=re.DOTALL)


def declared_tables() -> dict[str, str]:
    return {
        "options": options_table(OPTIONS),
        "strategy-options": strategy_options_table(STRATEGY_OPTIONS),
        "strategies": strategies_table(DECLARATIONS),
        "scala-options": scala_options_table(SCALA_OPTIONS),
    }


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("|  |", "| |").replace("| --- ", "|---")


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_tables(path.read_text(encoding="utf-8"), declared_tables()), encoding="utf-8")
