"""A writer killed at any point of a commit or a clean-up: others continue, and its remains are cleaned up.

The kernel kills the process: by SIGKILL before or after a request, or by a file size limit in the middle of a file.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from deltalake import DeltaTable

from spark_ehbalance.group.changes import Heartbeat
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.lease_table.delta_tables import HOUR_AGO, age, age_all, data_files
from tests.lease_table.store_conformance import ANN, BOB, committed

#: delta-rs and obstore do not survive a fork once used; these processes are forked from one that only imported them.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["spark_ehbalance.lease_table.delta"])

#: A file size limit in bytes; every file in the table is larger.
_FILE_SIZE = 100

_SIGNAL = {
    "before": -signal.SIGKILL,
    "after": -signal.SIGKILL,
    "within": -signal.SIGXFSZ,
    "checkpoint": -signal.SIGXFSZ,
}


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_SIZE, _FILE_SIZE))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def _die_at(number: int, when: str) -> None:
    """Arrange that this process is killed before, within or after (`when`) its storage request with this number."""
    count = [0]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] - 1 != number:
                return function(*args, **kwargs)
            if when == "within":
                _limit_files()
                return function(*args, **kwargs)
            if when == "after":
                function(*args, **kwargs)
            return _kill()

        return call

    for module, name in [(obstore, name) for name in ("get", "head", "put", "list", "list_with_delimiter", "delete")]:
        setattr(module, name, counted(getattr(module, name)))
    os.remove = counted(os.remove)


def _commit(uri: str, number: int, when: str) -> None:
    store = DeltaStore(uri)
    base = store.read()
    _die_at(number, when)
    commit(store, base, [Heartbeat(by=ANN, at_ms=7)])


def _tidy(uri: str, number: int, when: str) -> None:
    store = DeltaStore(uri)
    store.read()
    if when == "checkpoint":
        _limit_files()
    else:
        _die_at(number, when)
    store.tidy()


def exit_code_of(target: Callable[[str, int, str], None], uri: str, number: int, when: str) -> int | None:
    """Run `target` in a process and return its exit code, which is negative if a signal killed it."""
    process = _PROCESSES.Process(target=target, args=(uri, number, when))
    process.start()
    process.join(60)
    return process.exitcode


def assert_others_continue(uri: str, mine: DeltaStore, renewal: int) -> None:
    """Assert that all handles read the same snapshot and can write, and that maintenance keeps only required files."""
    known = mine.read()
    with DeltaStore(uri) as fresh:
        assert fresh.read() == known
        assert known.members["ann"].renewal == renewal
        for _ in range(3):
            known = committed(mine, Heartbeat(by=BOB, at_ms=9))
            assert fresh.read() == known
        assert DeltaTable(uri).version() == known.version
        log = Path(uri, "_delta_log")
        age((*data_files(uri), *log.iterdir(), *Path(uri).glob("*#*")), HOUR_AGO)
        known = committed(mine, Heartbeat(by=BOB, at_ms=9))
        fresh.read()
        fresh.tidy()
        assert mine.read() == fresh.read() == known
    assert {file.name for file in Path(uri).iterdir()} == {"_delta_log", *(f.name for f in data_files(uri))}
    assert len(data_files(uri)) == 1
    names = {f"{known.version:020}{end}" for end in (".json", ".checkpoint.parquet")}
    assert {file.name for file in log.iterdir() if "#" not in file.name} == names | {"_last_checkpoint"}


@pytest.mark.parametrize(
    ("number", "when"),
    [(0, "before"), (0, "within"), (1, "before"), (1, "within"), (1, "after")],
    ids=["before the data file", "in it", "between the files", "in the log file", "after it"],
)
def test_killed_commit_is_atomic(uri: str, mine: DeltaStore, number: int, when: str) -> None:
    before = mine.read().members["ann"].renewal
    assert exit_code_of(_commit, uri, number, when) == _SIGNAL[when]
    assert_others_continue(uri, mine, before + (when == "after"))


def test_commit_makes_two_requests(uri: str, mine: DeltaStore) -> None:
    before = mine.read().members["ann"].renewal
    assert exit_code_of(_commit, uri, 2, "before") == 0
    assert_others_continue(uri, mine, before + 1)


@pytest.mark.parametrize(("number", "when"), [(0, "checkpoint"), *((number, "before") for number in (0, 1, 2, 3, 7))])
def test_interrupted_clean_up_is_harmless(uri: str, mine: DeltaStore, number: int, when: str) -> None:
    for _ in range(5):
        committed(mine, Heartbeat(by=BOB, at_ms=9))
    age_all(uri)
    known = committed(mine, Heartbeat(by=BOB, at_ms=9))
    assert exit_code_of(_tidy, uri, number, when) == _SIGNAL[when]
    assert mine.read() == known
    assert_others_continue(uri, mine, known.members["ann"].renewal)
