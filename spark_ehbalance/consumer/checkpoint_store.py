"""azure-eventhub's `CheckpointStore` over a lease table in Delta."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from azure.eventhub import CheckpointStore, TransportType
from azure.eventhub.exceptions import OwnershipLostError

from spark_ehbalance.consumer.hub import Hub, HubAccess, NoHub
from spark_ehbalance.consumer.membership import ConsumerMember, Times
from spark_ehbalance.consumer.ownership import checkpoint as checkpoint_entry
from spark_ehbalance.consumer.ownership import etag, ownership
from spark_ehbalance.errors import OptionError, StoreFormatError
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.credentials import Identity
from spark_ehbalance.hub.network import Network, in_arguments
from spark_ehbalance.leases.model import Lease
from spark_ehbalance.member.turn import Sight
from spark_ehbalance.stores.base import REQUEST_TIMEOUT, LeaseStore
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.stores.identity import with_identity
from spark_ehbalance.stores.opening import capabilities, check_storage
from spark_ehbalance.stores.opening import location as parse_location
from spark_ehbalance.values.defaults import HANDOVER_TIMEOUT, LEASE_DURATION
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position
from spark_ehbalance.values.secrets import shown
from spark_ehbalance.values.starting_positions import StartingPositions

#: The default of azure-eventhub's client, and what it makes of it where no expiration is given.
_LOAD_BALANCING_INTERVAL, _INTERVALS_TO_EXPIRATION = 30.0, 6

#: So many intervals can pass between two cycles of the client, which adds a random part.
_LONGEST_INTERVAL = 1.2

#: The arguments that name a credential.
_IDENTITY = ("credential", "client_id", "tenant_id")

_T = TypeVar("_T")

_NO_POSITION = (
    "where reading begins is not known: give DeltaCheckpointStore a connection_string or a credential, or start one of "
    "the group's queries first"
)


class DeltaCheckpointStore(CheckpointStore):
    """Lets an unmodified `EventHubConsumerClient` share an event hub with Spark queries through their lease table:

        store = DeltaCheckpointStore("abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/leases", connection_string=...)
        with store, EventHubConsumerClient.from_connection_string(..., checkpoint_store=store) as client:
            client.receive(on_event=...)

    `location`, `storage_options`, `credential` with `client_id` and `tenant_id`, `starting_position`, `lease_duration`,
    `handover_timeout` and `allow_plaintext_emulator` are as the queries' options. The credential also opens a table in
    Azure whose `storage_options` name none. `transport_type` (default: `Amqp`, with `http_proxy` `AmqpOverWebsocket`),
    `http_proxy`, `custom_endpoint_address`, `connection_verify` and the two intervals, in seconds, must be what the
    client is given. docs/consumers.md says what they do.

    A store serves one client at a time, in one process: a fork makes its own. `close` is called when the process ends.

    Raises `OptionError`. All calls raise `OptionError` for a second client, for one that reads another group than the
    table's, and if the store is closed; `StoreError` and, with access to the hub, `HubUnavailableError`; `FencedError`
    if another consumer has the client's id, and `DataLossError`, until the store is made anew, if another table is in
    the place of this one or, with access to the hub, if the table has the positions of another hub.
    """

    def __init__(
        self,
        location: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        connection_string: str | None = None,
        credential: str | None = None,
        client_id: str | None = None,
        tenant_id: str | None = None,
        transport_type: TransportType | None = None,
        http_proxy: Mapping[str, Any] | None = None,
        custom_endpoint_address: str | None = None,
        connection_verify: str | None = None,
        allow_plaintext_emulator: bool = False,
        starting_position: str = "latest",
        load_balancing_interval: float = _LOAD_BALANCING_INTERVAL,
        partition_ownership_expiration_interval: float | None = None,
        lease_duration: float = LEASE_DURATION,
        handover_timeout: float = HANDOVER_TIMEOUT,
    ) -> None:
        """Nothing is read or created yet."""
        expiration = partition_ownership_expiration_interval
        if expiration is None:
            expiration = _INTERVALS_TO_EXPIRATION * load_balancing_interval
        times = {
            "load_balancing_interval": load_balancing_interval,
            "lease_duration": lease_duration,
            "handover_timeout": handover_timeout,
        }
        for name, seconds in {**times, "partition_ownership_expiration_interval": expiration}.items():
            if not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
                raise OptionError(f"{name}={seconds!r} is wrong: allowed is a number of seconds above 0")
        if not expiration > _LONGEST_INTERVAL * load_balancing_interval:
            raise OptionError(
                f"partition_ownership_expiration_interval={expiration:g} is wrong: allowed is more than "
                f"{_LONGEST_INTERVAL} × load_balancing_interval={load_balancing_interval:g}"
            )
        access: Mapping[str, Any] = {
            "connection_string": connection_string,
            "credential": credential,
            "client_id": client_id,
            "tenant_id": tenant_id,
        }
        for name, text in access.items():
            if not isinstance(text, (str, type(None))):
                raise OptionError(f"{name} is wrong: allowed is a string, not {type(text).__name__}")
        named = next((name for name in _IDENTITY if access[name] is not None), None)
        if connection_string is not None and named is not None:
            raise OptionError(f"connection_string and {named} are both set: set one way in")
        identity = None if named is None else Identity.from_options(access, _IDENTITY)
        self._network = Network.of_client(
            transport_type, http_proxy, custom_endpoint_address, connection_verify, allow_plaintext_emulator
        )
        self._location = _parsed("location", parse_location, str(location))
        if not capabilities(self._location).members:
            raise OptionError(
                f"location={location} is a container of Azure's event processors, not a lease table in Delta: give "
                "the client their BlobCheckpointStore"
            )
        options: Any = storage_options or {}
        if not isinstance(options, Mapping) or not all(isinstance(each, str) for each in (*options, *options.values())):
            raise OptionError("storage_options is wrong: allowed is a mapping of names to values, which are strings")
        self._options = with_identity(self._location, options, identity, os.environ)
        check_storage(self._location, self._options, os.environ)
        self._starting_position = _parsed("starting_position", StartingPositions.parse, str(starting_position))
        self._connection_string = connection_string
        self._identity = identity
        self._times = Times(load_balancing_interval, expiration, lease_duration, handover_timeout)
        self._lock = threading.Lock()  # for all but checkpoints, which wait for nobody
        self._served: tuple[float, float | None] = 0.0, None  # for how long the lock was held, and since when it is
        self._member: ConsumerMember | None = None  # the last one
        self._store: LeaseStore | None = None
        self._hub: Hub = NoHub()
        self._group: Group | None = None
        self._closed = False
        self._process: int | None = None  # which has opened it

    # --- what the client calls ---------------------------------------------------------------------------------

    def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Who owns which partition; first the store's own consumer takes its share.

        Partitions whose owner is dead or gone have the owner "". `last_modified_time` tells the age of the owner's last
        sign of life so that the client, by its expiration interval, judges as the group does by its lease duration.
        """
        named = _named(fully_qualified_namespace, eventhub_name, consumer_group)
        with self._locked():
            self._open(named)
            if (member := self._current()) is not None:
                member.take(None)
            return [{**named, **each} for each in self._ownership()]

    def claim_ownership(self, ownership_list: Iterable[dict[str, Any]], **kwargs: Any) -> list[dict[str, Any]]:
        """Those of `ownership_list` that their owner has now, and reads until a later call does not name them.

        The owner joins the group. A free partition is claimed, and another member's is requested from it, if the
        group's strategy gives it to this owner; what has not come when the call ends is not claimed. A partition that
        has changed hands since it was listed is not claimed either. The owner "" gives the partition back. Raises
        `OptionError` if the store serves another owner.
        """
        claimed: list[dict[str, Any]] = []
        by_owner: dict[str, list[dict[str, Any]]] = {}
        for each in ownership_list:
            by_owner.setdefault(each["owner_id"], []).append(each)
        with self._locked():
            for owner, wanted in by_owner.items():
                for each in wanted:
                    self._open(each)
                claimed += self._claimed(owner, wanted) if owner else self._given_back(wanted)
        return claimed

    def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: Any) -> None:
        """Write that everything up to this event is processed; it is durable when the call returns.

        Each call is a commit of the lease table, and all members' commits form one line: checkpoint once per batch of
        events, or every few seconds. If another member waits for the partition it is handed over with this very
        commit, so that no event is processed twice.

        Raises `OwnershipLostError` if the partition is not this consumer's any more, or has been handed over with this
        checkpoint: left to the client, it makes the client close its receiver. Raises `StoreUnavailableError` if the
        commit does not succeed in time: it may still be written later.
        """
        self._check_usable()
        partition, offset = str(checkpoint["partition_id"]), checkpoint.get("offset")
        if self._group is not None:
            self._check_group(checkpoint)
        position = Position(int(checkpoint["sequence_number"]), None if offset is None else str(offset))
        member = self._current()
        if member is None or not member.checkpoint(partition, position):
            raise OwnershipLostError(
                f"partition {partition} is not this consumer's any more: who owns it goes on at the lease table's "
                "checkpoint"
            )

    def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """The group's checkpoints, and where reading begins in partitions that were claimed and never checkpointed.

        `offset` is what the client starts after: the event's offset where the table has it, else the event's sequence
        number, as an int.
        """
        named = _named(fully_qualified_namespace, eventhub_name, consumer_group)
        with self._locked():
            leases = self._open(named).read().leases
            if (member := self._current()) is not None:
                member.opened()
        return [{**named, **checkpoint_entry(each)} for each in leases.values() if each.checkpoint is not None]

    # --- what the client does not call -------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether it is open, and was not opened by a process that this one is a fork of, where its threads are not."""
        return not self._closed and self._process in (None, os.getpid())

    def close(self) -> None:
        """Give back what the store's consumer owns, and leave the group. Call it after the client's `close`."""
        if not self.usable:
            return
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            if (member := self._current()) is not None:
                member.stop()
            if self._store is not None:
                self._store.close()

    def __enter__(self) -> DeltaCheckpointStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- inside ------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._check_usable()  # in a fork the lock may never be released
        with self._lock:
            self._check_usable()
            before, began = self._served[0], time.monotonic()
            self._served = before, began
            try:
                yield
            finally:
                self._served = before + time.monotonic() - began, None

    def _client_time(self) -> float:
        """Monotonic seconds, without those for which clients wait for the store, also for the calls of others."""
        served, since = self._served
        return (time.monotonic() if since is None else since) - served

    def _check_usable(self) -> None:
        if self._closed:
            raise OptionError("the checkpoint store is closed")
        if not self.usable:
            raise OptionError("the checkpoint store was opened by another process, before a fork: make one in each")

    def _open(self, named: Mapping[str, Any]) -> LeaseStore:
        """The lease table, once it has been checked that it is that of the group which the client names."""
        if self._member is not None and self._member.error is not None:
            raise self._member.error
        if self._store is not None:
            self._check_group(named)
            return self._store
        store, hub, group = self._new_store(), self._new_hub(named), _group(named)
        if store.exists():
            self._group = store.read().group
            self._check_group(named)
        elif isinstance(hub, NoHub):
            raise StoreFormatError(f"there is no lease table at {self._location}, so {_NO_POSITION}")
        else:
            store.create(group)
        self._store, self._hub, self._group, self._process = store, hub, group, os.getpid()
        atexit.register(self.close)  # Python must not end below the keepers' threads, which delta-rs does not survive
        return store

    def _new_store(self) -> LeaseStore:
        # A commit that the storage does not answer takes two or three requests: they end before the lease does.
        return DeltaStore(self._location, self._options, min(REQUEST_TIMEOUT, self._times.lease_duration / 6))

    def _new_hub(self, named: Mapping[str, Any]) -> Hub:
        if self._connection_string is None and self._identity is None:
            return NoHub()
        by_name = self._connection_string is None
        options = {
            "connectionString": self._connection_string,
            "fullyQualifiedNamespace": named["fully_qualified_namespace"] if by_name else None,
            "eventHubName": named["eventhub_name"],
            **({} if self._identity is None else self._identity.options()),
        }
        try:
            connection = Connection.from_options(options, self._network)
        except OptionError as error:  # which names the queries' options
            text = str(error).replace("connectionString", "connection_string").replace("eventHubName", "eventhub_name")
            raise OptionError(in_arguments(text)) from None
        if connection.group(named["consumer_group"]) != _group(named):
            raise OptionError(
                f"connection_string leads to {connection.namespace}, but the client reads {_group(named)}"
            )
        return HubAccess(connection, named["consumer_group"], self._starting_position)

    def _check_group(self, named: Mapping[str, Any]) -> None:
        if _group(named) != self._group:
            raise OptionError(
                f"the client reads {_group(named)}, but the lease table at {self._location} is that of {self._group}"
            )

    def _current(self) -> ConsumerMember | None:
        return None if self._member is None or self._member.stopped else self._member

    def _seen(self) -> tuple[Mapping[str, Lease], Sight | None]:
        assert self._store is not None
        member = self._current()
        sight = None if member is None else member.sight()
        return (sight and sight.leases) or self._store.read().leases, sight

    def _ownership(self) -> list[dict[str, Any]]:
        member, (leases, sight), silence = self._current(), self._seen(), dict[str, float]()
        if sight is not None:
            silence = {p: 1.0 if p in sight.expired else min(s, 0.99) for p, s in sight.silence.items()}
        consumers = {} if member is None else {member.owner: member.readable()}
        return list(ownership(leases, consumers, silence, time.time(), self._times.expiration))

    def _claimed(self, owner: str, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
        member = self._current()
        if member is not None and member.owner != owner:
            raise OptionError(
                f"the checkpoint store serves the client {member.owner}, and {owner} gets nothing to read: make a "
                "DeltaCheckpointStore for each client. If the other has ended, this one goes on when its partitions "
                f"are given back, after {self._times.expiration:g} s at the latest"
            )
        leases, _ = self._seen()
        tags = {p: etag(each.epoch, each.owner) for p, each in leases.items()}
        valid = {e["partition_id"]: e for e in wanted if e.get("etag") in (None, tags.get(e["partition_id"]))}
        if member is None:
            before, member = self._member, self._joined(owner, leases)
            if before is not None and before.owner == owner:  # it was silent for too long, and has not noticed it
                member.left |= before.left | before.used.keys()
            self._member = member
        if valid.keys() - member.readable().keys():
            member.take(valid.keys())
        now = time.time()
        return [
            {**valid[p], "etag": etag(holding.epoch, owner), "last_modified_time": now}
            for p, holding in member.use(valid.keys()).items()
        ]

    def _joined(self, owner: str, leases: Mapping[str, Lease]) -> ConsumerMember:
        unknown = [p for p, each in leases.items() if each.checkpoint is None]
        if isinstance(self._hub, NoHub) and (unknown or not leases):
            which = f"partitions {', '.join(unknown)}" if unknown else "all partitions"
            raise StoreFormatError(f"the lease table at {self._location} has no position of {which}, so {_NO_POSITION}")
        member = ConsumerMember(owner, self._times, self._new_store, self._hub, self._client_time)
        member.start()
        return member

    def _given_back(self, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
        given = []
        for each in wanted:
            if (member := self._current()) is None:
                break
            partition = each["partition_id"]
            epoch = member.used.get(partition)
            if epoch is None and str(each.get("etag")).endswith(f" {member.owner}"):
                member.closed(partition)
            if epoch is not None and each.get("etag") == etag(epoch, member.owner):
                member.give_back(partition)
                given.append({**each, "etag": etag(epoch, None), "last_modified_time": time.time()})
        return given


def _parsed(name: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text.strip())
    except ValueError as allowed:
        raise OptionError(f"{name}={shown(text)} is wrong: allowed is {allowed}") from None


def _named(namespace: str, hub: str, consumer_group: str) -> dict[str, str]:
    return {"fully_qualified_namespace": namespace, "eventhub_name": hub, "consumer_group": consumer_group}


def _group(named: Mapping[str, Any]) -> Group:
    return Group.of(named["fully_qualified_namespace"], named["eventhub_name"], named["consumer_group"])
