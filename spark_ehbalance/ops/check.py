"""`ehbalance check`: whether a stream can run here, line by line."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_ehbalance.eventhub.wire.client import TESTED, untested_version
from spark_ehbalance.lease_table.opening import open_store
from spark_ehbalance.ops.arguments import AsJson, BlobNamespace, HubOptions, StorageOptions
from spark_ehbalance.ops.checks.findings import Finding, Verdict, ok, warning
from spark_ehbalance.ops.checks.hub import check_hub
from spark_ehbalance.ops.checks.storage import check_storage, check_table
from spark_ehbalance.ops.common import cell, console
from spark_ehbalance.query.options import Options

_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red"}

#: Of the longest name of a line, which is printed before the others are known.
_NAME_WIDTH = len("compare-and-swap")

#: What a query runs on; those that are not installed are left out.
_PACKAGES = ("spark-ehbalance", "pyspark", "azure-eventhub", "azure-identity", "azure-storage-blob", "deltalake")


def check(
    hub: HubOptions,
    storage: StorageOptions,
    lease_table: Annotated[
        str | None, typer.Argument(help="Path or address of the lease table; without it the event hub alone.")
    ] = None,
    blob_namespace: BlobNamespace = None,
    as_json: AsJson = False,
) -> None:
    """Try what a query of this group needs: the event hub, the right to read, the storage of the lease table.

    One event is read, without disturbing anybody. The storage is tried with a table of its own beside the lease table,
    which is removed again. The exit code is 1 if something failed.
    """
    options = hub.options(lease_table, storage, blob_namespace)
    found = list[Finding]()
    for finding in _findings(options):
        found.append(finding)
        if not as_json:
            _show(console(), finding)
    if as_json:
        typer.echo(json.dumps([each._asdict() for each in found], indent=2))
    if any(each.verdict is Verdict.FAILED for each in found):
        raise typer.Exit(1)


def _findings(options: Options) -> Iterator[Finding]:
    yield from _packages()
    hub = yield from check_hub(options.connection, options.consumer_group)
    if options.lease_table is None:
        return
    with open_store(options.lease_table, options.storage_options, group=options.group) as store:
        yield check_table(store, options.lease_table, options.group, hub)
    yield from check_storage(options.lease_table, options.storage_options)


def _packages() -> Iterator[Finding]:
    found = [f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    yield ok("versions", ", ".join(found))
    if (reason := untested_version()) is not None:
        yield warning("azure-eventhub", reason, f"if something fails: pip install azure-eventhub=={TESTED}")


def _show(out: Console, finding: Finding) -> None:
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=max(len(each.value) for each in Verdict))
    line.add_column(width=_NAME_WIDTH)
    line.add_row(Text(finding.verdict.value, _STYLES[finding.verdict]), finding.what, cell(finding.text))
    if finding.remedy:
        line.add_row("", "", cell(f"→ {finding.remedy}"))
    out.print(line)
