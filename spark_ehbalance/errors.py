"""The errors of the package. Every error that a user can cause or act upon derives from `EhBalanceError`."""

from __future__ import annotations

from spark_ehbalance.text import plain


class EhBalanceError(Exception):
    """The base of all errors of `ehbalance`. Its text is one line that is safe to print."""

    def __str__(self) -> str:
        return plain(super().__str__())  # it may contain names that others chose


class OptionError(EhBalanceError, ValueError):
    """An option is missing, wrong or contradicts another. The text names the option, its value and what is allowed."""


class SparkMissingError(EhBalanceError, ImportError):
    """Neither pyspark nor pyspark-client is installed, or too old a one. The text says what to install."""


class InstallationError(EhBalanceError, ImportError):
    """The source cannot be imported by a Python of Spark's. The text says by which, why, and what to do."""


class ClientVersionError(EhBalanceError):
    """The installed version of azure-eventhub cannot be used. The text says what it lacks and which one to install."""


class HubUnavailableError(EhBalanceError):
    """The event hub is unreachable or refused the request. The text names what was tried."""


class MissingError(HubUnavailableError):
    """The event hub, consumer group or partition does not exist, or is disabled: to try again does not help. The text
    says which, and what to do."""


class DataLossError(EhBalanceError):
    """The hub no longer has events that were to be read: they expired, or the hub was recreated."""


class MalformedEventError(EhBalanceError):
    """An event cannot be decoded. The text names partition, sequence number, reason and how to continue."""


class UnsendableEventError(EhBalanceError):
    """A row is no event that the hub takes: too large, or contradictory. The text names the row and what is wrong."""


class ForeignReaderError(EhBalanceError):
    """A reader outside the group reads a partition with a higher owner level, which disconnects this query."""


class StoreError(EhBalanceError):
    """The base of all errors of the lease store."""


class StoreUnavailableError(StoreError):
    """The lease store could not be read or written. As far as is known, nothing was changed."""


class StoreDamagedError(StoreUnavailableError):
    """The lease table's log or rows are invalid, as after a crash of the storage or another program's write.

    The text names the file and the remedy. The store counts as unavailable.
    """


class StoreReplacedError(StoreError):
    """The lease table was replaced by another one, or set back to an earlier version, while it was in use."""


class StoreFormatError(StoreError):
    """The table is no lease table, belongs to another group, or has a newer format."""


class ConflictError(StoreError):
    """Another writer committed after the snapshot was read: read and decide again."""


class FencedError(EhBalanceError):
    """A later process started with the same identity (the same Spark checkpoint): this one must stop."""


class TargetError(EhBalanceError):
    """A table cannot be written exactly once, or not now. The text names what is in the way, and the remedy."""
