"""Records and replays an engine's step logs (`spark_ehbalance/query/steps.py`)."""

from __future__ import annotations

import ast
import datetime
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from spark_ehbalance.eventhub import metadata, ranges
from spark_ehbalance.group import changes, model, snapshot
from spark_ehbalance.group.member import engine as member_engine
from spark_ehbalance.group.member import load_meter, member_settings, membership, query_state
from spark_ehbalance.group.member import protocol as member_protocol
from spark_ehbalance.group.member.membership import Clocks
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import PARAMETERS, NamedStrategy
from spark_ehbalance.query import engine, offsets, progress_policy, protocol, replay, steps
from spark_ehbalance.query.steps import Steps

_MODULES = (
    *(metadata, ranges, changes, model, snapshot, member_engine, load_meter, member_settings, membership, query_state),
    *(member_protocol, engine, offsets, progress_policy, protocol, replay, steps),
)
#: Names that the expressions in a log can contain.
_NAMES: dict[str, Any] = {
    **{name: value for module in _MODULES for name, value in vars(module).items() if isinstance(value, type)},
    **{parameters.__name__: parameters for parameters in PARAMETERS.values()},
    "NamedStrategy": NamedStrategy,
    **{f"MemberState.{state.name}": state for state in model.MemberState},
    "datetime.datetime": datetime.datetime,
    "datetime.timezone.utc": datetime.timezone.utc,
    "inf": float("inf"),
}


@contextmanager
def record_steps() -> Iterator[list[str]]:
    """Collects the steps that all engines log in the meantime."""
    log, handler = logging.getLogger(steps.__name__), _Lines()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield handler.lines
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def outputs(lines: Sequence[str]) -> list[str]:
    """The engine's outputs in each step."""
    return [line.split(" → ")[1] for line in lines[1:]]


def replay_log(log: Sequence[str]) -> list[str]:
    """The log written by a new engine that is created as the first line of `log` describes and receives the same
    inputs at the same times. `log` covers one process of a query."""
    read = _Reader().value
    first, *rest = [line.split(": ", 1)[1] for line in log]
    with record_steps() as written:
        again = Steps(read(first))
        for number, line in enumerate(rest, 2):
            monotonic, wall_ms, step = line.split(" ", 2)
            with suppress(Exception):  # this is what gets logged
                again.take(read(step.split(" → ")[0]), Clocks(float(monotonic), int(wall_ms)))
            if len(written) < number:
                written.append(f"{line.split(' → ')[0]} → nothing")
    return written


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class _Reader:
    """Reads a log's expressions in order. A log can come from a stranger, so only expressions that a log can contain
    are evaluated."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None  # read last

    def value(self, text: str) -> Any:
        return self._value(ast.parse(text, mode="eval").body)

    def _value(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.UnaryOp(ast.USub(), operand):
                return -self._value(operand)
            case ast.Name("SAME_SNAPSHOT"):
                return self._snapshot
            case ast.Name() | ast.Attribute():
                return _NAMES[ast.unparse(node)]
            case ast.List(items):
                return [self._value(item) for item in items]
            case ast.Tuple(items):
                return tuple(self._value(item) for item in items)
            case ast.Dict(keys, values):
                return {
                    key: self._value(value)
                    for key, value in zip(map(ast.literal_eval, filter(None, keys)), values, strict=True)
                }
            case ast.Call(made, arguments, named):
                value = self._value(made)(
                    *map(self._value, arguments), **{str(keyword.arg): self._value(keyword.value) for keyword in named}
                )
                self._snapshot = value if isinstance(value, Snapshot) else self._snapshot
                return value
        raise ValueError(f"not in a log of steps: {ast.unparse(node)}")


if __name__ == "__main__":
    import sys

    sys.stdout.writelines(f"{line}\n" for line in replay_log(sys.stdin.read().splitlines()))
