"""What jobs about the lease tables of many groups share: which tables, how they are opened, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.hub import credentials
from spark_ehbalance.hub.credentials import Identity
from spark_ehbalance.job.settings import PREFIX, JobSettings, SettingError, group, place, required
from spark_ehbalance.source.options import storage_options
from spark_ehbalance.stores.base import LeaseTable
from spark_ehbalance.stores.finding import lease_tables, parse_folder
from spark_ehbalance.stores.opening import open_store
from spark_ehbalance.values.secrets import REFERENCES, is_reference, shown

_T = TypeVar("_T")

#: Tables at once: a storage takes its time for each request, and silent members are watched for some seconds.
_AT_ONCE = 16

#: Characters of an unexpected error that are repeated.
_LONGEST = 500

_OPTION, _SECRET = "storageOptions.", "storageSecrets."


def _access(prefix: str, options: Mapping[str, str], _: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in options.items():
        if name not in credentials.OPTIONS and not name.startswith((_OPTION, _SECRET)):
            allowed = ", ".join(prefix + each for each in (*credentials.OPTIONS, f"{_OPTION}NAME", f"{_SECRET}NAME"))
            raise SettingError(f"there is no setting {shown(prefix + name)}: allowed are {allowed}")
        if name.startswith(_SECRET) and not is_reference(value):
            raise SettingError(f"{shown(prefix + name)} holds a secret, for all to see: write {REFERENCES}")
    return options


@dataclass(frozen=True, kw_only=True)
class LeaseTables(JobSettings):
    """`lease_tables` is a lease table, or a folder with any number of them, also in folders of it. `source` has the
    options of a stream that concern its lease table's storage."""

    lease_tables: str = required(place)
    source: Mapping[str, str] = group(_access)

    def __post_init__(self) -> None:
        try:
            self.storage_options()
        except OptionError as error:
            raise SettingError(f"{PREFIX}source.*: {error}") from None

    @property
    def folder(self) -> str:
        """The one spelling of `lease_tables`. Raises `SettingError`."""
        try:
            return parse_folder(self.lease_tables)
        except ValueError as allowed:
            raise SettingError(
                f"{PREFIX}leaseTables={shown(self.lease_tables)} is wrong: allowed is {allowed}"
            ) from None

    def storage_options(self) -> dict[str, str]:
        """The options of the tables' storage, with secrets instead of references. Raises `OptionError`."""
        given = {name: self.source[name] for name in credentials.OPTIONS if name in self.source}
        public, secret = (
            {name.removeprefix(kind): value for name, value in self.source.items() if name.startswith(kind)}
            for kind in (_OPTION, _SECRET)
        )
        identity = Identity.from_options(given) if given else None
        return storage_options(public, secret, f"{self.folder}/x", identity)

    def each(self, act: Callable[[LeaseTable, str], _T]) -> Iterator[tuple[str, _T | EhBalanceError]]:
        """The location of each table, in order, and what `act` returns for the opened table and its location; or the
        error with which that ended. Several threads call `act`, as it mostly waits.

        Raises `EhBalanceError` if there is none, and if the folder cannot be listed.
        """
        options = self.storage_options()

        def acted(location: str) -> tuple[str, _T | EhBalanceError]:
            try:
                with open_store(location, options) as store:
                    return location, act(store, location)
            except EhBalanceError as error:
                return location, error
            except Exception as error:  # what nobody has thought of in one table must not stop the others
                return location, EhBalanceError(f"{type(error).__name__}: {str(error)[:_LONGEST]}")

        found = [*lease_tables(self.folder, options)]
        if not found:
            raise EhBalanceError(f"there is no lease table in {self.folder}")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from pool.map(acted, found)
