"""The backends of lease tables, selected by the location's scheme.

To add a backend, write a subclass of `LeaseStore` in its own module, with the same static methods and parameters as the
others, and select it in `_backend`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_ehbalance.group.capabilities import Capabilities
from spark_ehbalance.group.identity import Group
from spark_ehbalance.lease_table.blob.locations import is_container
from spark_ehbalance.lease_table.contract import REQUEST_TIMEOUT, LeaseStore
from spark_ehbalance.lease_table.delta.locations import SCHEMES, has_known_scheme
from spark_ehbalance.settings.locations import EXAMPLE_ADDRESS, has_unsafe_characters, scheme
from spark_ehbalance.settings.option_texts import invalid_option

if TYPE_CHECKING:
    from spark_ehbalance.lease_table.blob.store import BlobStore
    from spark_ehbalance.lease_table.delta.store import DeltaStore

#: Schemes that a user might expect to work, with the reasons why they do not.
_REFUSED = {
    "dbfs": "DBFS does not support conditional writes",
    "hdfs": "obstore, which makes the lease table's commits, does not support HDFS",
}


def open_store(
    location: str,
    options: Mapping[str, str] | None = None,
    patience: float = REQUEST_TIMEOUT,
    group: Group | None = None,
) -> LeaseStore:
    """Open the lease table at `location`, with the `options` for its storage. Nothing is read or created yet.

    `group` selects the group if the location contains several. Requests time out after `patience` seconds, unless the
    options set a limit. Raises `OptionError` if no backend supports the location's scheme.
    """
    try:
        backend = _backend(location)
    except ValueError as allowed:
        raise invalid_option("leaseTable", location, allowed) from None
    return backend(location, options, patience, group)


def canonical_location(text: str) -> str:
    """The canonical form of a location: an address or an absolute path.

    Raises `ValueError`, whose message states the allowed forms.
    """
    if not text:
        raise ValueError("a path or an address that is not empty")
    if has_unsafe_characters(text):
        raise ValueError(
            "a path or an address without quotes, brackets, wildcards, carets, backslashes or control characters"
        )
    return _backend(text).parse_location(text)


def check_storage(location: str, options: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raise `OptionError` if commits would be unsafe with these options and environment variables."""
    _backend(location).check_storage(location, options, environment)


def capabilities(location: str) -> Capabilities:
    """The capabilities of the backend that opens `location`."""
    return _backend(location).capabilities


def _backend(location: str) -> type[BlobStore] | type[DeltaStore]:
    # Imports only the backend in use, to save CPU time whenever a query starts. A container is never a Delta table.
    if is_container(location):
        from spark_ehbalance.lease_table.blob.store import BlobStore

        return BlobStore
    if has_known_scheme(location):
        from spark_ehbalance.lease_table.delta.store import DeltaStore

        return DeltaStore
    if (kind := scheme(location)) in _REFUSED:
        raise ValueError(
            f"a storage address, such as {EXAMPLE_ADDRESS}, but not one that begins with {kind}:, "
            f"because {_REFUSED[kind]}"
        )
    known = ", ".join(f"{scheme}://" for scheme in SCHEMES if scheme)
    raise ValueError(f"a path, or an address that begins with {known}")
