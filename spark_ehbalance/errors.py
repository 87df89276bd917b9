"""The errors of the package. All that a user can cause or act upon derives from `EhBalanceError`."""

from __future__ import annotations

from spark_ehbalance.values.text import plain_lines


class EhBalanceError(Exception):
    """Anything that went wrong in `ehbalance`, said in one line."""

    def __str__(self) -> str:
        return plain_lines(super().__str__())  # names that are in it may be other people's


class OptionError(EhBalanceError, ValueError):
    """An option is missing, wrong or contradicts another one. Names the option, the value and what is allowed."""


class HubUnavailableError(EhBalanceError):
    """The event hub could not be reached or refused us. Says what was tried."""


class DataLossError(EhBalanceError):
    """Events that were to be read are gone: the position has aged out, or the hub was made anew."""


class MalformedEventError(EhBalanceError):
    """An event cannot be read. Names partition, sequence number and reason, and how to go on."""


class ForeignReaderError(EhBalanceError):
    """Somebody outside the group reads a partition, with an owner level that shuts this query out."""


class StoreError(EhBalanceError):
    """Something about the lease store."""


class StoreUnavailableError(StoreError):
    """The lease store could not be reached or written. Nothing was changed as far as is known."""


class StoreDamagedError(StoreUnavailableError):
    """The lease table's log or rows make no sense, as after a crash of the storage or somebody else's writing. Names
    the file and the way to mend it. Until then it is as if the store were away. `problem`: the file and what is wrong.
    """

    def __init__(self, text: str, problem: str = "") -> None:  # an error that is unpickled has its text alone
        super().__init__(text)
        self.problem = problem


class StoreFormatError(StoreError):
    """The table is not a lease table, or belongs to another group, or has a newer format."""


class ConflictError(StoreError):
    """Somebody else has written the store since the snapshot was read: read again, and decide again."""


class FencedError(EhBalanceError):
    """A later process has started with this one's identity (the same Spark checkpoint): this one must stop."""
