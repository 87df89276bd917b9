"""The exceptions of the package. Each has a condition in `spark_ehbalance.error_conditions`, which docs/errors.md
describes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from spark_ehbalance.error_conditions import CONDITIONS
from spark_ehbalance.text import plain


class EhBalanceError(Exception):
    """The base class of all errors of `ehbalance`. `condition` is the error's name, and `parameters` are the values in
    its message. The message is a single line that is safe to print."""

    def __init__(self, condition: str, **parameters: object) -> None:
        """Raises `KeyError` for an unknown condition, and `TypeError` for missing or unknown parameters."""
        if condition not in CONDITIONS:
            raise KeyError(f"unknown error condition {condition!r}")
        if parameters.keys() != (expected := CONDITIONS[condition].parameters):
            raise TypeError(f"{condition} has the parameters {sorted(expected)}, not {sorted(parameters)}")
        super().__init__(condition, parameters)
        self.condition = condition
        self.parameters = parameters

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.condition, **self.parameters), ()

    def __str__(self) -> str:
        has_remedy = CONDITIONS[self.condition].remedy
        remedy = f" Remedy: docs/errors.md#{self.condition.lower()}" if has_remedy else ""
        return f"[{self.condition}] {self.reason}.{remedy}"

    @property
    def reason(self) -> str:
        """The error's message without its full stop, for use as a parameter of another error or as a field of a log
        line."""
        message = CONDITIONS[self.condition].message.format(**self.parameters)
        return plain(message).removesuffix(".")  # escaped, because parameters may be untrusted


class OptionError(EhBalanceError, ValueError):
    """An option or argument is missing, invalid, or contradicts another."""


class SparkMissingError(EhBalanceError, ImportError):
    """pyspark is missing or too old."""


class InstallationError(EhBalanceError, ImportError):
    """A Python process started by Spark cannot import the source."""


class ClientVersionError(EhBalanceError):
    """The installed version of azure-eventhub is not supported."""


class HubUnavailableError(EhBalanceError):
    """The event hub is unreachable or refused the request."""


class MissingError(HubUnavailableError):
    """The event hub, consumer group or partition does not exist or is disabled, so a retry is pointless."""


class DataLossError(EhBalanceError):
    """Unread events no longer exist, or the checkpoint, the lease table and the event hub do not belong together."""


class MalformedEventError(EhBalanceError):
    """An event cannot be decoded."""


class UnsendableEventError(EhBalanceError):
    """A row cannot be sent as an event."""


class ForeignReaderError(EhBalanceError):
    """A reader outside the group reads a partition with a higher owner level, which disconnects this query."""


class StoreError(EhBalanceError):
    """The base class of all errors of the lease store."""


class StoreUnavailableError(StoreError):
    """The lease store could not be read or written. As far as is known, nothing was changed."""


class StoreDamagedError(StoreUnavailableError):
    """The lease table's log or rows are invalid. The store counts as unavailable."""


class StoreReplacedError(StoreError):
    """The lease table was replaced, rolled back or edited by another program."""


class StoreFormatError(StoreError):
    """The table is not a lease table, belongs to another group, or has an unsupported format."""


class ConflictError(StoreError):
    """Another writer committed after the snapshot was read, so the caller must read again and retry."""


class FencedError(EhBalanceError):
    """A newer process with the same identity (the same Spark checkpoint) has started, so this one stops."""


class TargetError(EhBalanceError):
    """A table cannot be written exactly once, or not at the moment."""


def recreate(condition: str, parameters: Mapping[str, object]) -> EhBalanceError:
    """Recreate an error that another process raised, as an instance of the condition's class."""
    error: EhBalanceError = globals()[CONDITIONS[condition].error](condition, **parameters)
    return error


def describe(error: BaseException) -> str:
    """Describe `error` for use as a parameter of another error or as a field of a log line: its `reason` if it is an
    `EhBalanceError`, otherwise its message."""
    text = error.reason if isinstance(error, EhBalanceError) else str(error).removesuffix(".")
    return text or type(error).__name__
