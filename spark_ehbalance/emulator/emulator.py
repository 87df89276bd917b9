"""The emulator inside a Python process: the server on a thread of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from .administration import Administration
from .broker import HubSpec
from .certificates import LOCAL_NAMES, TemporaryCertificate, server_context
from .control import ControlServer, execute
from .message import Event
from .server import Server, Settings

_T = TypeVar("_T")
_LOCAL_HOSTS = ("", "0.0.0.0", "127.0.0.1", "localhost")  # reached as localhost from this machine
_DEFAULT_KEY = ("RootManageSharedAccessKey", "emulator")  # connection strings need a key even if none is checked


class Emulator(Administration):
    """An Event Hubs namespace on this machine, between `start` and `stop` or as a context manager.

    `hubs` maps names to numbers of partitions. `port` 0 takes a free port. Without `data_dir` events are kept in
    memory. `consumer_groups` are added to $Default. With `sas_keys` (name to key) tokens are checked; without, every
    token is accepted. A client that is silent for `handshake_timeout` or `idle_timeout` seconds is disconnected.

    The limits are those of the service (docs/service-rules.md): `max_connections` of the namespace, answers to
    `management_requests` a second for each hub (None: no limit), `idle_link_timeout` seconds after which a link is
    detached on which nothing has happened. Events are delivered `settled` or, each with a tag of its own, unsettled.

    With `tls` the emulator listens with TLS: its certificate is made on the spot, also for the host names `tls_names`,
    and clients verify it with `ca_file`. Or it is that of `certificate`, a PEM file of a private key and its
    certificate. Clients then need a `custom_endpoint_address`: they take the port from a connection string only without
    TLS. With `websocket_port` (0 takes a free one) it also takes AMQP over websocket there, for which they always need
    one.

    If the hubs are `geo_replicated`, their offsets are no numbers, and `promote` can lose events.
    """

    def __init__(
        self,
        hubs: Mapping[str, int] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_dir: str | Path | None = None,
        retention: timedelta = timedelta(days=7),
        consumer_groups: Iterable[str] = (),
        sas_keys: Mapping[str, str] | None = None,
        handshake_timeout: float = 20.0,
        idle_timeout: float = 240.0,
        certificate: str | Path | None = None,
        tls: bool = False,
        tls_names: Iterable[str] = (),
        websocket_port: int | None = None,
        max_connections: int = 5000,
        management_requests: int | None = 50,
        settled: bool = True,
        idle_link_timeout: float = 1800.0,
        geo_replicated: bool = False,
    ) -> None:
        """Nothing happens before `start`. Raises ValueError for an invalid hub, or if a certificate is given and to be
        made."""
        if tls and certificate is not None:
            raise ValueError("a certificate is given, and another to be made: one is needed for TLS")
        self._hubs = [HubSpec(name, partitions) for name, partitions in (hubs or {}).items()]
        self._settings = Settings(
            host,
            port,
            None if data_dir is None else Path(data_dir),
            retention,
            tuple(consumer_groups),
            sas_keys,
            handshake_timeout,
            idle_timeout,
            websocket_port=websocket_port,
            max_connections=max_connections,
            management_requests=management_requests,
            settled=settled,
            idle_link_timeout=idle_link_timeout,
            geo_replicated=geo_replicated,
        )
        self._certificate = None if certificate is None else Path(certificate)
        self._tls, self._tls_names = tls, tuple(tls_names)
        self._made: TemporaryCertificate | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: Server | None = None
        self._control: ControlServer | None = None

    def start(self) -> None:
        """Listen. Raises OSError if port or data directory are not available, LogCorruptError for damaged data."""
        if self._loop is not None:
            raise RuntimeError("the emulator is already started")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event-hubs-emulator", daemon=True)
        self._thread.start()
        try:
            self._wait_for(self._begin())
        except BaseException:
            self.stop()
            raise

    async def _begin(self) -> None:
        self._server = Server(replace(self._settings, tls=self._server_context()))
        for spec in self._hubs:
            self._server.operations.add_hub(spec.name, spec.partitions)
        await self._server.start()

    def _server_context(self) -> ssl.SSLContext | None:
        if self._tls:
            host = self._settings.host
            others = () if host in (*LOCAL_NAMES, *_LOCAL_HOSTS) else (host,)
            self._made = TemporaryCertificate.made((*LOCAL_NAMES, *others, *self._tls_names))
            context = self._made.server_context()
            self._made.server_file.unlink()  # it holds the private key
            return context
        return None if self._certificate is None else server_context(self._certificate)

    def stop(self) -> None:
        """Drop all connections and close all files; a second call does nothing."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        if self._control is not None:
            self._wait_for(self._control.stop())
        if self._server is not None:
            self._wait_for(self._server.stop())
        self._loop = self._thread = self._server = self._control = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        if self._made is not None:
            self._made.remove()
            self._made = None

    def __enter__(self) -> Emulator:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port on which it listens. Raises RuntimeError unless it is started."""
        return self._running().port

    @property
    def websocket_port(self) -> int:
        """The port on which it takes websockets. Raises RuntimeError unless it is started with one."""
        if (port := self._running().websocket_port) is None:
            raise RuntimeError("the emulator was started without a port for websockets")
        return port

    @property
    def ca_file(self) -> Path:
        """The certificate by which clients verify the one that was made. Raises RuntimeError unless one was."""
        if self._made is None:
            raise RuntimeError("the emulator has made no certificate")
        return self._made.ca_file

    def connection_string(self, hub: str | None = None, key_name: str | None = None, key: str | None = None) -> str:
        """The connection string for clients. `key_name` and `key` default to the first of `sas_keys`."""
        name, value = next(iter((self._settings.sas_keys or {}).items()), _DEFAULT_KEY)
        host = "localhost" if self._settings.host in _LOCAL_HOSTS else self._settings.host
        entity = f"EntityPath={hub}" if hub else ""
        plain = "" if self._tls or self._certificate is not None else "UseDevelopmentEmulator=true;"
        return (
            f"Endpoint=sb://{host}:{self.port};SharedAccessKeyName={key_name or name};"
            f"SharedAccessKey={key or value};{plain}{entity}"
        )

    def open_control_port(self, port: int = 0, host: str = "127.0.0.1") -> int:
        """Accept calls from other processes (`EmulatorControl`), with one of the keys if there are `sas_keys`; returns
        the port. Raises OSError."""
        keys = self._settings.sas_keys
        self._control = ControlServer(self._running().operations, None if keys is None else [*keys.values()])
        return self._wait_for(self._control.start(host, port))

    def append_encoded(self, hub: str, partition: str, *events: Event) -> None:
        """Store `events` as they are, also such as no sender could send; for tests of readers."""
        operations = self._running().operations

        async def append() -> None:
            operations.append_encoded(hub, partition, events)

        self._wait_for(append())

    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("the emulator is not running")
        return self._server

    def _wait_for(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        future: Future[_T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()

    def _invoke(self, call: str, **arguments: Any) -> Any:
        operations = self._running().operations

        async def on_loop() -> Any:
            return execute(operations, call, arguments)

        return self._wait_for(on_loop())
