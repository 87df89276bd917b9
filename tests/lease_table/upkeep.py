"""Maintenance and all commands on a lease table among foreign files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_ehbalance.group.changes import Heartbeat
from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.lease_table.delta.folder import Folder
from spark_ehbalance.lease_table.delta.names import is_data_file
from tests.lease_table.delta_tables import change
from tests.lease_table.foreign_files import NEW, OLD, contents, put
from tests.lease_table.store_conformance import ANN, committed, filled
from tests.ops.command import Command

#: The folders, relative to the one of the table: beside it, in it and in its history.
BELOW = ("", "leases/", "leases_history/")


def assert_only_own_files_go(
    folder: Folder,
    options: dict[str, str],
    ehbalance: Command,
    hub: Sequence[str],
    an_hour_passes: Callable[[], object],
) -> None:
    """Make a table in the empty `folder`, opened with `options`, which commands find in the environment, and of the
    `hub` that these arguments name; then put others' files beside it and into it, and do all that is done with a
    table."""
    table = f"{folder.uri.rstrip('/')}/leases"
    ehbalance.succeeds("init", table, *hub)
    with DeltaStore(table, options) as store:
        filled(store, ANN, owned=("0",), group=store.read().group)
        store.record([change(1)])
        files = {path: content for below in BELOW for path, content in put(folder, below, OLD).items()}
        for hour in range(24):
            an_hour_passes()
            for _ in range(3):
                committed(store, Heartbeat(by=ANN, at_ms=hour))
            store.record([change(hour)])
            store.tidy()
            if hour == 22:
                files |= {path: content for below in BELOW for path, content in put(folder, below, NEW).items()}
        store.maintain()
        own = [file.name for file in Folder(table, options).listed() if is_data_file(file.name)]
        assert len(own) < 10, "nothing was tidied up"
        assert contents(folder, files) == files
    for command in (
        ["status", table],
        ["history", table],
        ["init", table, *hub],
        ["pin", table, "0", "ann", "--why", "test"],
        ["pin", table, "0", "--remove"],
        ["drain", table, "ann"],
        ["seek", table, *hub, "1", "--to", "earliest"],
        ["maintain", table],
    ):
        ehbalance(*command)
    with DeltaStore(table, options) as store:
        committed(store, Heartbeat(by=ANN, at_ms=1))
        store.maintain()
    assert contents(folder, files) == files
