"""The emulator inside a Python process: the server thread, and the operations on it."""

from __future__ import annotations

import asyncio
import functools
import math
import ssl
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from spark_ehbalance.emulator import service_errors as errors
from spark_ehbalance.emulator.amqp.errors import AmqpError
from spark_ehbalance.emulator.broker import Broker, Hub, check_hub
from spark_ehbalance.emulator.certificates import CA_FILE, LOCAL_NAMES, issue_certificate
from spark_ehbalance.emulator.message import EncodedEvent, build_events
from spark_ehbalance.emulator.partition_log import PartitionLog
from spark_ehbalance.emulator.server import Server
from spark_ehbalance.emulator.service_errors import service_error
from spark_ehbalance.emulator.settings import Settings

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LOCAL_HOSTS = ("", "0.0.0.0", "127.0.0.1", "localhost")  # clients on this machine reach all of these as localhost
_DEFAULT_KEY = ("RootManageSharedAccessKey", "emulator")  # a connection string must contain a key
_EVENTS_PER_CALL = 1000  # one call blocks the server for about 5 ms


def _operation(run: Callable[Concatenate[Emulator, _P], _T]) -> Callable[Concatenate[Emulator, _P], _T]:
    """Decorate a method of `Emulator` so that its body runs on the server's loop."""

    @functools.wraps(run)
    def call(self: Emulator, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._on_loop(lambda: run(self, *args, **kwargs))

    return call


@dataclass(frozen=True)
class PartitionState:
    """The state of a partition. The partition is empty if both sequence numbers are equal.

    Before the first event, `last_offset` is "-1" and `last_enqueued_ms` (milliseconds since 1970) is None.
    """

    first_sequence_number: int
    next_sequence_number: int
    last_offset: str
    last_enqueued_ms: int | None

    @property
    def last_enqueued_time(self) -> datetime | None:
        """In UTC."""
        if self.last_enqueued_ms is None:
            return None
        return datetime.fromtimestamp(self.last_enqueued_ms / 1000, timezone.utc)


class Emulator:
    """An Event Hubs namespace on this machine. It runs from `start` to `stop`, or in a `with` block.

    With TLS or a websocket, give clients a `custom_endpoint_address` with the port. Every operation takes effect before
    it returns, and raises `ValueError` for an unknown or invalid hub or partition. Partitions can be ints.
    """

    def __init__(self, hubs: Mapping[str, int] | None = None, **settings: Any) -> None:
        """`hubs` maps the hubs' names to their numbers of partitions; `settings` are the fields of `Settings`."""
        self._hubs = dict(hubs or {})
        self._settings = Settings(**settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._running: Server | None = None
        self._certificates: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        """Start to listen. Raises OSError if the port is not available, and ValueError for an invalid hub."""
        if self._loop is not None:
            raise RuntimeError("the emulator is already running")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event-hubs-emulator", daemon=True)
        self._thread.start()
        try:
            self._wait_for(self._begin())
        except BaseException:
            self.stop()
            raise

    async def _begin(self) -> None:
        self._running = Server(self._settings, self._tls_context())
        for name, partitions in self._hubs.items():
            self._running.broker.add_hub(name, partitions)
        await self._running.start()

    def _tls_context(self) -> ssl.SSLContext | None:
        settings = self._settings
        if not settings.tls:
            return None
        others = () if settings.host in (*LOCAL_NAMES, *_LOCAL_HOSTS) else (settings.host,)
        self._certificates = tempfile.TemporaryDirectory(prefix="ehbalance-tls-")  # readable only by this user
        certificate = issue_certificate(Path(self._certificates.name), (*LOCAL_NAMES, *others, *settings.tls_names))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.server_file)
        certificate.server_file.unlink()  # it contains the private key
        return context

    def stop(self) -> None:
        """Stop, and drop all connections. Idempotent."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        if self._running is not None:
            self._wait_for(self._running.stop())
        self._loop = self._thread = self._running = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        if self._certificates is not None:
            self._certificates.cleanup()
            self._certificates = None

    def __enter__(self) -> Emulator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port for AMQP. Raises RuntimeError unless the emulator is running."""
        return self._server.port

    @property
    def websocket_port(self) -> int:
        """The port for websockets. Raises RuntimeError unless the emulator is running and has such a port."""
        if (port := self._server.websocket_port) is None:
            raise RuntimeError("the emulator has no websocket port")
        return port

    @property
    def ca_file(self) -> Path:
        """The file with the authority's certificate, with which clients verify the server. Raises RuntimeError unless
        the emulator is running with TLS."""
        if self._certificates is None:
            raise RuntimeError("the emulator is not running with TLS")
        return Path(self._certificates.name) / CA_FILE

    def connection_string(self, hub: str | None = None, key_name: str | None = None, key: str | None = None) -> str:
        """The connection string for clients. `key_name` and `key` default to the first of `sas_keys`."""
        settings = self._settings
        name, value = next(iter((settings.sas_keys or {}).items()), _DEFAULT_KEY)
        host = "localhost" if settings.host in _LOCAL_HOSTS else settings.host
        entity = f"EntityPath={hub}" if hub else ""
        plain = "" if settings.tls else "UseDevelopmentEmulator=true;"
        return (
            f"Endpoint=sb://{host}:{self.port};SharedAccessKeyName={key_name or name};"
            f"SharedAccessKey={key or value};{plain}{entity}"
        )

    # --- operations

    @_operation
    def hubs(self) -> list[str]:
        """The names of all hubs."""
        return self._broker.hubs()

    @_operation
    def add_hub(self, name: str, partitions: int) -> None:
        """Create a hub, or extend an existing one to this number of partitions."""
        self._broker.add_hub(name, partitions)

    @_operation
    def delete_hub(self, name: str) -> None:
        """Delete a hub and its events, and detach its links."""
        hub = self._broker.delete_hub(name)
        self._detach(service_error(errors.DELETED, entity=hub.name), hub.name)

    @_operation
    def add_partitions(self, hub: str, count: int) -> None:
        """Add `count` partitions to a hub."""
        if count < 1:
            raise ValueError(f"cannot add {count} partitions: a hub can only grow")
        extended = self._broker.hub(hub)
        check_hub(extended.name, len(extended.partitions) + count)
        extended.extend(count)

    @_operation
    def add_consumer_group(self, hub: str, name: str) -> None:
        """Create a consumer group, if it does not exist."""
        self._broker.hub(hub).add_group(name)

    @_operation
    def disable_hub(self, name: str, disable: bool = True) -> None:
        """Detach a hub's links, and refuse new links and requests for properties until this is called with False."""
        hub = self._broker.hub(name)
        hub.disabled = disable
        if disable:
            self._detach(service_error(errors.DISABLED, hub=hub.name), hub.name)

    @_operation
    def trim(self, hub: str, partition: str | int, before_sequence_number: int) -> None:
        """Delete the events before a sequence number, as retention does."""
        self._log(hub, partition).trim(before_sequence_number)

    @_operation
    def compact(self, hub: str, partition: str | int, start: int, end: int) -> None:
        """Remove the events with the sequence numbers `start` to `end` - 1, as compaction does."""
        self._log(hub, partition).remove(start, end)

    @_operation
    def promote(self, hub: str, lost: int = 0, *, refuse_lost: bool = False) -> None:
        """Promote the secondary region of a geo-replicated hub. That region lacks the last `lost` events of each
        partition, so new events reuse their sequence numbers. Resets all connections.

        A receiver that starts at the offset of a lost event then reads from the same sequence number; with
        `refuse_lost`, it is refused.
        """
        promoted = self._broker.hub(hub)
        for log in promoted.partitions:
            log.promote(lost, refuse_lost)
        promoted.created_at = datetime.now(timezone.utc)  # it is not known whether the service does this too
        self._drop_all()

    @_operation
    def partition_state(self, hub: str, partition: str | int) -> PartitionState:
        """The current state of a partition."""
        log = self._log(hub, partition)
        return PartitionState(**{name: getattr(log, name) for name in PartitionState.__dataclass_fields__})

    @_operation
    def readers(self, hub: str, partition: str | int, group: str = "$Default") -> list[int | None]:
        """The epochs of the readers attached to a partition; None for a reader without an epoch."""
        return [reader.epoch for reader in self._broker.hub(hub).readers(group, str(partition))]

    def append(
        self,
        hub: str,
        partition: str | int,
        bodies: Sequence[bytes],
        properties: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        partition_key: str | None = None,
    ) -> None:
        """Add events without a client. `properties` is one mapping for all events, or a sequence with one for each."""
        for start in range(0, len(bodies), _EVENTS_PER_CALL):
            part = slice(start, start + _EVENTS_PER_CALL)
            some = [properties] if properties is None or isinstance(properties, Mapping) else properties[part]
            self.append_encoded(hub, partition, *build_events(bodies[part], some, partition_key))

    @_operation
    def append_encoded(self, hub: str, partition: str | int, *events: EncodedEvent) -> None:
        """Store `events` unchanged, even events that no sender could produce. For tests of readers."""
        self._log(hub, partition).append(events)

    @_operation
    def connections(self) -> int:
        """The number of open TCP connections."""
        return len(self._server.clients)

    @_operation
    def token_life(self, seconds: float) -> None:
        """Limit the validity of new tokens to `seconds`; 0 removes the limit."""
        self._broker.faults.token_life = seconds or math.inf

    @_operation
    def drop_connections(self) -> None:
        """Reset all TCP connections."""
        self._drop_all()

    @_operation
    def detach(
        self,
        hub: str,
        partition: str | int | None = None,
        condition: str = "amqp:link:detach-forced",
        description: str = "The link was detached by the emulator's operator.",
    ) -> None:
        """Detach the publishers and readers of a hub or partition with an error."""
        self._detach(service_error((condition, "{text}"), text=description), hub, partition)

    @_operation
    def server_busy(self, count: int = 0, seconds: float = 0.0, hub: str | None = None) -> None:
        """Refuse attaches, sends, deliveries and requests for properties with com.microsoft:server-busy: the next
        `count`, and all within the next `seconds`. Applies to one hub, or to every hub if `hub` is None.

        A reader is detached when it would receive events. If `count` and `seconds` are 0, the fault ends.
        """
        self._broker.faults.server_busy(count, seconds, hub)

    @_operation
    def delay(self, seconds: float, hub: str | None = None, partition: str | int | None = None) -> None:
        """Delay deliveries and the responses to sends by `seconds`; 0 ends the fault. If `hub` or `partition` is None,
        this applies to every hub or partition."""
        self._broker.faults.delay(seconds, hub, None if partition is None else str(partition))

    @_operation
    def pause(self, hub: str, partition: str | int) -> None:
        """Stop deliveries from a partition until `resume`; it still accepts events."""
        self._log(hub, partition)
        self._broker.hub(hub).paused.add(str(partition))

    @_operation
    def resume(self, hub: str, partition: str | int) -> None:
        """End `pause`."""
        self._broker.hub(hub).paused.discard(str(partition))
        for endpoint in self._server.endpoints(hub, partition):
            endpoint.on_capacity()

    @_operation
    def refuse_connections(self, refuse: bool = True) -> None:
        """Reset every new TCP connection until this is called with False. Open connections are not affected."""
        self._broker.faults.refuse_connections = refuse

    @_operation
    def silence_connections(self, silence: bool = True) -> None:
        """Accept new TCP connections without ever responding, until this is called with False. Connections accepted
        until then stay silent."""
        self._broker.faults.silence_connections = silence

    @_operation
    def clear_faults(self) -> None:
        """End `server_busy`, `delay`, `token_life`, `refuse_connections` and `silence_connections`."""
        self._broker.faults.clear()

    # --- on the server's loop

    def _on_hub(self, name: str, run: Callable[[Hub], _T]) -> _T:
        """Call `run` with a hub, on the server's loop. Raises ValueError if there is no such hub."""
        return self._on_loop(lambda: run(self._broker.hub(name)))

    @property
    def _broker(self) -> Broker:
        return self._server.broker

    def _log(self, hub: str, partition: str | int) -> PartitionLog:
        return self._broker.hub(hub).partition(str(partition))

    def _detach(self, error: AmqpError, hub: str, partition: str | int | None = None) -> None:
        for endpoint in self._server.endpoints(hub, partition):
            endpoint.detach(error)

    def _drop_all(self) -> None:
        for client in list(self._server.clients):
            client.drop()

    @property
    def _server(self) -> Server:
        if self._running is None:
            raise RuntimeError("the emulator is not running")
        return self._running

    def _wait_for(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _on_loop(self, run: Callable[[], _T]) -> _T:
        """Call `run` on the server's loop, and return its result. Turns an AmqpError into a ValueError with the same
        description."""

        async def call() -> _T:
            return run()

        _ = self._server
        try:
            return self._wait_for(call())
        except AmqpError as error:
            raise ValueError(error.description) from None
