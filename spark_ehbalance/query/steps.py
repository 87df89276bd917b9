"""The log of a query's engine, from which the query's decisions can be replayed: see `tests/query/step_log.py`."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from spark_ehbalance.group.member.membership import Clocks
from spark_ehbalance.group.member.protocol import Tick
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.protocol import BatchFinished, Input, Output
from spark_ehbalance.text import logger

_LOG = logger(__name__)


class SeededRandom(random.Random):
    """A random number generator whose `repr` contains its seed, so that it can be recreated from a log."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._seed = seed

    def __repr__(self) -> str:
        return f"SeededRandom({self._seed})"


class Steps:
    """Passes inputs to a newly created engine. At level DEBUG, it logs the engine first, then each step that has an
    effect: both clocks, the input, and the outputs or the error. Objects are logged as constructor calls with keyword
    arguments, without defaults, in ASCII."""

    def __init__(self, engine: QueryEngine) -> None:
        self._engine = engine
        self._run = engine.member.author.incarnation
        self._snapshot: Snapshot | None = None  # the one that was logged last
        self._finished: Input = Tick()
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("step %s: %s", self._run, self._text(engine))

    def take(self, input: Input, now: Clocks) -> list[Output]:
        """Call `QueryEngine.handle`, and log the step."""
        if not _LOG.isEnabledFor(logging.DEBUG):
            return self._engine.handle(input, now)
        try:
            outputs = self._engine.handle(input, now)
        except Exception as error:
            self._log(input, now, error)
            raise
        if outputs or input not in (Tick(), self._finished):
            self._log(input, now, outputs)
        if isinstance(input, BatchFinished):
            self._finished = input
        return outputs

    def _log(self, input: Input, now: Clocks, result: object) -> None:
        text = f"{self._text(input)} → {self._text(result)}"
        _LOG.debug("step %s: %r %d %s", self._run, now.monotonic, now.wall_ms, text)

    def _text(self, value: Any) -> str:
        if isinstance(value, Snapshot):
            if value is self._snapshot:  # snapshots may be long, and engines may compare them by identity
                return "SAME_SNAPSHOT"
            self._snapshot = value
        if isinstance(value, Enum):
            return f"{type(value).__name__}.{value.name}"
        if is_dataclass(value):
            return f"{type(value).__name__}({', '.join(self._arguments(value))})"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{self._text(key)}: {self._text(item)}" for key, item in value.items()) + "}"
        if type(value) in (list, tuple):
            texts = ", ".join(map(self._text, value))
            return f"[{texts}]" if type(value) is list else f"({texts}{',' * (len(value) == 1)})"
        return ascii(value)

    def _arguments(self, value: Any) -> Iterator[str]:
        for field in fields(value):
            content = getattr(value, field.name)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if field.init and field.repr and content != default:
                yield f"{field.name}={self._text(content)}"
