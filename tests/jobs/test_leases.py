"""The job `maintain_leases`: its settings, and what it does."""

from __future__ import annotations

import base64
import contextlib
import re
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from jobs.maintain_leases import maintain
from spark_ehbalance.errors import EhBalanceError, StoreFormatError
from spark_ehbalance.job.leases import LeaseTables
from spark_ehbalance.job.settings import PREFIX, SettingError
from spark_ehbalance.leases.model import Handover, Lease, Member, Pin
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.lag import Lag
from spark_ehbalance.values.position import Position
from tests.stores.delta_tables import age_all, change, data_files

KEY = base64.b64encode(b"the-key-of-an-account-0123456789").decode()
AT = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make(table: Path, name: Any = str, *, free: bool = False) -> Path:
    """A lease table with two partitions, of which one is owned, with 41 unread events. `name` makes texts."""
    ms = now_ms()
    lag = Lag(10, 51, ms - 4000, ms - 1000)
    lease = Lease("0", name("ann"), 7, 5, ms, ms - 60_000, Position(9, "offset"), lag=lag)
    lease = replace(lease, handover=Handover(name("bob"), 30_000), pin=Pin(name("cat"), "operator"))
    member = Member(
        name("ann"), "x", 1, renewed_at_ms=ms, started_at_ms=ms, host=name("host"), lease_duration_ms=30_000
    )
    free_lease = Lease("1", None if free else name("ann"), 2, 5, ms - 600_000 if free else ms, ms, Position(9))
    with DeltaStore(str(table)) as store:
        store.create(Group(name("ns"), name("hub"), name("group")))
        leases = {"0": lease, "1": free_lease}
        new = replace(store.read(), leases=leases, members={name("ann"): member}, lease_duration_ms=30_000)
        store.write(store.read(), new)
        store.record([change(1)])
    return table


def damage(table: Path) -> None:
    for each in (table / "_delta_log").iterdir():
        each.write_bytes(b"")


def settings(folder: Path, **more: str) -> dict[str, str]:
    return {PREFIX + name: value for name, value in ({"leaseTables": str(folder)} | more).items()}


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"leaseTables": ""}, "leaseTables is not set: a path or an address"),
        ({"leaseTables": "dbfs:/leases"}, "leaseTables='dbfs:/leases' is wrong: allowed is an address that does not"),
        ({"leaseTables": f"az://c/x?sig={KEY}"}, "leaseTables holds what looks like a key"),
        ({"unknown": "x"}, f"there is no setting '{PREFIX}unknown': allowed are {PREFIX}leaseTables"),
        ({"source.leaseTable": "/x"}, f"there is no setting '{PREFIX}source.leaseTable': allowed are "),
        ({"source.storageSecrets.account_key": KEY}, r"source.storageSecrets.account_key' holds a secret, .*env:NAME"),
        ({"source.storageOptions.account_key": KEY}, r"source.\*: option storageOptions.account_key holds a secret"),
        ({"source.storageSecrets.account_key": "env:NO_SUCH"}, r"source.\*: .*no such variable"),
        ({"source.credential": "nobody"}, r"source.\*: .*credential='nobody' is wrong"),
        ({"source.storageOptions.allow_unsafe_rename": "true"}, r"source.\*: .*allow_unsafe_rename is set"),
    ],
)
def test_a_setting_that_cannot_be_is_named_in_one_line(tmp_path: Path, more: dict[str, str], error: str) -> None:
    with pytest.raises(SettingError, match=error) as refusal:
        LeaseTables.read(settings(tmp_path, **more), {})
    assert "\n" not in str(refusal.value)
    assert KEY not in str(refusal.value)


def test_every_table_is_cleaned_up_whatever_is_wrong_with_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [make(tmp_path / name) for name in ("a", "b", "deep/c")]
    damage(tables[1])
    for table in (tables[0], tables[2]):
        make_old(table)
        assert len(data_files(str(table))) > 1
    with pytest.raises(EhBalanceError, match=r"^1 of 3 lease tables could not be cleaned up$"):
        maintain(None, LeaseTables.read(settings(tmp_path), {}))  # type: ignore[arg-type]
    assert [len(data_files(str(table))) for table in (tables[0], tables[2])] == [1, 1]
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"\d+\.\d s$", "… s", line) for line in lines if "/b" not in line] == [
        f"{tables[0]}, of ns/hub/group, was cleaned up in … s",
        f"{tables[2]}, of ns/hub/group, was cleaned up in … s",
    ]
    (failed,) = (line for line in lines if "/b" in line)
    assert failed.startswith(f"{tables[1]} was not cleaned up: the lease table at {tables[1]} is damaged: ")


def make_old(table: Path) -> None:
    """Let there be a data file that nobody has needed for an hour."""
    age_all(str(table))
    with DeltaStore(str(table)) as store:
        store.write(store.read(), replace(store.read(), lease_duration_ms=60_000))


@pytest.mark.parametrize(
    "description",
    [
        "[" * 100_000,
        '{"ehbalance": ' + "[" * 100_000,
        '{"ehbalance": Infinity}',
        '{"ehbalance": 1, "namespace": 1, "eventHub": null, "consumerGroup": []}',
    ],
    ids=("brackets", "brackets inside", "infinity", "no texts"),
)
def test_a_strangers_description_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], description: str
) -> None:
    for name in ("a", "c"):
        make(tmp_path / name)
    deltalake.write_deltalake(str(tmp_path / "b"), pa.table({"a": [1]}), description=description)
    with contextlib.suppress(EhBalanceError):  # it is one that cannot be cleaned up, or none
        maintain(None, LeaseTables.read(settings(tmp_path), {}))  # type: ignore[arg-type]
    assert capsys.readouterr().err.count("was cleaned up in") == 2
    with DeltaStore(str(tmp_path / "b")) as store, pytest.raises(StoreFormatError, match="is not a lease table"):
        store.read()


def test_an_error_that_nobody_expects_in_one_table_does_not_stop_the_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make(tmp_path / name)

    def act(_: Any, location: str) -> str:
        if location.endswith("a"):
            raise RuntimeError("x" * 10_000)
        return "done"

    (_, failed), (_, done) = LeaseTables.read(settings(tmp_path), {}).each(act)
    assert isinstance(failed, EhBalanceError)
    assert len(str(failed)) < 600
    assert done == "done"


def test_a_folder_without_lease_tables_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EhBalanceError, match="there is no lease table in "):
        maintain(None, LeaseTables.read(settings(tmp_path), {}))  # type: ignore[arg-type]
