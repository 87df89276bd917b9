"""Maintenance and all commands on a lease table among foreign files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_ehbalance.group.changes import Heartbeat
from spark_ehbalance.lease_table.delta.folder import Folder
from spark_ehbalance.lease_table.delta.names import is_data_file
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.lease_table.delta_tables import change
from tests.lease_table.foreign_files import NEW, OLD, contents, put
from tests.lease_table.store_conformance import ANN, committed, filled
from tests.ops.command import Command

#: Folders relative to the table's parent: next to the table, in it and in its history.
BELOW = ("", "leases/", "leases_history/")


def assert_only_own_files_go(
    folder: Folder,
    options: dict[str, str],
    ehbalance: Command,
    hub: Sequence[str],
    an_hour_passes: Callable[[], object],
) -> None:
    """Assert that maintenance and all commands remove only the table's own files.

    Creates a table for `hub` (command-line arguments) in the empty `folder`, opened with `options`, which commands read
    from the environment; then puts foreign files next to it and into it, and runs everything that works on a table.
    """
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
