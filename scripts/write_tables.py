"""Writes what the documentation has of the code, of measurements and of the simulator:

    python scripts/write_tables.py                        options, strategies, the Python reference, and Numbers
    python scripts/write_tables.py artifacts/bench.json   first takes the subjects of that run of `make bench` over
    python scripts/write_tables.py --simulated            also plays scenarios and groups, which takes some minutes

A table stands between two comments in its page, `<!-- table: NAME -->` and `<!-- end of table -->`; a simulated one
between `<!-- simulated: NAME -->` and `<!-- end of simulated -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.common import Bar, three_digits
from scripts.group_size import HEAD, LATENCIES, SIZES, group_size
from scripts.python_reference import reference
from spark_ehbalance.metrics.definitions import BOTH, METRICS
from spark_ehbalance.simulation.measures import Result
from spark_ehbalance.simulation.run import simulate
from spark_ehbalance.simulation.scenario import READY_MADE, load
from spark_ehbalance.sink.options import WriteOptions
from spark_ehbalance.source.options import BATCH, OPTIONS, SHARED, STRATEGY_OPTIONS, STREAM
from spark_ehbalance.source.scala_options import SCALA_OPTIONS, ScalaOption
from spark_ehbalance.strategies import DECLARATIONS, DEFAULT_STRATEGY
from spark_ehbalance.values.declared import Declared, declarations, option_name

_ROOT = Path(__file__).parent.parent
_PAGE_NAMES = ("options", "writing", "strategies", "migration", "monitoring", "python", "numbers", "sizing")
PAGES = tuple(_ROOT / f"docs/{name}.md" for name in _PAGE_NAMES)

#: The last run of each subject of `make bench`: what of it docs/numbers.md shows.
MEASURED = _ROOT / "bench/numbers.json"

#: Units of a subject that are shown also without a bar, if not all are.
_UNITS = {"reader": "µs CPU", "throughput": "events/s", "processors": "times"}

#: What a subject is compared with, if not with all that was measured.
_COMPARED = {"reader": {"receive_batch"}}

_WHERE = {STREAM: "stream", SHARED: "shared", BATCH: "batch", "": "both"}


def options_table(options: Mapping[str, Declared]) -> str:
    rows = [(f"`{name}`", each.default, _WHERE[each.only], each.meaning) for name, each in options.items()]
    return _table(("option", "default", "for", "meaning"), rows)


def scala_options_table(options: Mapping[str, ScalaOption]) -> str:
    """Options of which the same is said share a row."""
    by_text: dict[str, list[str]] = {}
    for name, each in options.items():
        by_text.setdefault(_of_scala(each), []).append(f"`{name}`")
    return _table(("Scala connector", "here"), [(", ".join(names), text) for text, names in by_text.items()])


def _of_scala(each: ScalaOption) -> str:
    if each.ours:
        return f"`{each.ours}`" + (f": {each.documented}" if each.documented else "")
    same = f"accepted: `{each.same}`; else " if each.same else ""
    return f"{same}refused: {each.instead}"


def metrics_table() -> str:
    rows = [
        (
            f"`{each.name}`",
            "counter" if each.is_counter else "gauge",
            ", ".join(f"`{label}`" for label in each.labels),
            "query, table" if each.source == BOTH else each.source,
            each.meaning,
        )
        for each in METRICS
    ]
    return _table(("metric", "kind", "labels", "from", "meaning"), rows)


# --- what was measured -----------------------------------------------------------------------------------------------


def taken_over(run: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """`measured` with the subjects of `run`, which `make bench` has saved. Raises `ValueError` for a short run."""
    if run["short"]:
        raise ValueError("a run with --short measures nothing")
    loads = sorted([run["load_before"][0], run["load_after"][0]])
    how = f"{run['began'][:10]}, {run['cores']} cores, load {loads[0]:.1f} to {loads[1]:.1f}"
    found: dict[str, Any] = {**measured}
    for subject in dict.fromkeys(row["subject"] for row in run["rows"]):
        unit = _UNITS.get(subject)
        rows = [row for row in run["rows"] if row["subject"] == subject]
        rows = [row for row in rows if row["bar"] is not None or unit in (None, row["unit"])]
        found[subject] = {"run": how, "rows": [_shortened(row) for row in rows]}
    return found


def _shortened(row: Mapping[str, Any]) -> dict[str, Any]:
    runs, compared = row["runs"], row["compared"]
    shown = _COMPARED.get(row["subject"], compared.keys())
    return {
        "what": row["what"],
        "unit": row["unit"],
        "runs": [min(runs), statistics.median(runs), max(runs)],
        "bar": row["bar"],
        "compared": {who: statistics.median(compared[who]) for who in compared if who in shown},
    }


def numbers_table(measured: Mapping[str, Any]) -> str:
    rows = []
    for subject, found in measured.items():
        rows.append((f"**{subject}**", f"*{found['run']}*", "", "", ""))
        for row in found["rows"]:
            least, median, most = row["runs"]
            compared = ", ".join(f"{who} {three_digits(value)}" for who, value in row["compared"].items())
            limit = row["bar"] and Bar(**row["bar"])
            bar = f"{limit}{'' if limit.held(median) else ', **missed**'}" if limit else ""
            spread = f"{three_digits(least)} to {three_digits(most)}" if least != most else ""
            rows.append((row["what"], f"{three_digits(median)} {row['unit']}", spread, bar, compared))
    return _table(("what", "median", "runs", "bar", "compared with"), rows)


# --- what is simulated -----------------------------------------------------------------------------------------------


def scenarios_table(results: Sequence[Result]) -> str:
    by_scenario: dict[str, list[Result]] = {}
    for each in results:
        by_scenario.setdefault(each.scenario, []).append(each)
    names = [each.strategy for each in next(iter(by_scenario.values()))]
    rows = [
        (
            name,
            str(found[0].fewest_moves),
            *(f"{each.moves}/{each.unowned:.0f}/{_many(each.duplicates)}" for each in found),
        )
        for name, found in by_scenario.items()
    ]
    return _table(("scenario", "fewest", *names), rows)


def _many(count: int) -> str:
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}k" if count >= 1e4 else str(count)


def simulated_tables() -> dict[str, str]:
    """The scenarios whose group is small, as `ehbalance simulate --scenario all --compare` plays them, and groups."""
    small = [name for name in READY_MADE if not name.startswith("cold-start")]
    with ProcessPoolExecutor() as pool:
        played = [pool.submit(simulate, load(name), strategy) for name in small for strategy in sorted(DECLARATIONS)]
        grown = [pool.submit(group_size, latency, size) for latency in LATENCIES for size in SIZES]
        rows = [each.result() for each in grown]
        return {"scenarios": scenarios_table([each.result() for each in played]), "group-size": _table(HEAD, rows)}


# --- pages -----------------------------------------------------------------------------------------------------------


def with_tables(page: str, tables: Mapping[str, str], kind: str = "table") -> str:
    """`page` with each of its tables replaced. Raises `KeyError` for a name that is not in `tables`."""
    pattern = rf"(<!-- {kind}: ([\w-]+) -->\n).*?(<!-- end of {kind} -->)"
    return re.sub(pattern, lambda found: found[1] + tables[found[2]] + found[3], page, flags=re.DOTALL)


def declared_tables() -> dict[str, str]:
    return {
        "options": options_table(OPTIONS),
        "write-options": _table(
            ("option", "default", "meaning"),
            [
                (f"`{option_name(name)}`", each.default, each.meaning)
                for name, each in declarations(WriteOptions).items()
            ],
        ),
        "strategy-options": _table(
            ("option", "default", "meaning"),
            [(f"`{name}`", each.default, each.meaning) for name, each in STRATEGY_OPTIONS.items()],
        ),
        "strategies": _table(
            ("`strategy`", "from", "moves by", "how it shares"),
            [
                (f"`{name}`", DECLARATIONS[name].origin, DECLARATIONS[name].moves, DECLARATIONS[name].rule)
                for name in sorted(DECLARATIONS, key=lambda name: (name != DEFAULT_STRATEGY, name))
            ],
        ),
        "metrics": metrics_table(),
        "scala-options": scala_options_table(SCALA_OPTIONS),
        "python": reference(),
        "numbers": numbers_table(json.loads(MEASURED.read_text(encoding="utf-8"))),
    }


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("| --- ", "|---")
    return re.sub(r"\|  (?=\|)", "| ", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="what `make bench` has saved")
    parser.add_argument("--simulated", action="store_true")
    arguments = parser.parse_args()
    if arguments.run:
        measured = taken_over(json.loads(arguments.run.read_text("utf-8")), json.loads(MEASURED.read_text("utf-8")))
        MEASURED.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    simulated = simulated_tables() if arguments.simulated else None
    for path in PAGES:
        page = with_tables(path.read_text(encoding="utf-8"), declared_tables())
        path.write_text(page if simulated is None else with_tables(page, simulated, "simulated"), encoding="utf-8")


if __name__ == "__main__":
    main()
