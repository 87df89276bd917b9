"""The emulator inside a Python process: the server on a thread of its own."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from spark_ehbalance.emulator.administration import Administration
from spark_ehbalance.emulator.amqp.errors import AmqpError
from spark_ehbalance.emulator.broker import Hub, check_hub
from spark_ehbalance.emulator.certificates import CA_FILE, LOCAL_NAMES, make
from spark_ehbalance.emulator.control import ControlServer
from spark_ehbalance.emulator.message import Event
from spark_ehbalance.emulator.server import Server
from spark_ehbalance.emulator.settings import Settings

_T = TypeVar("_T")
_LOCAL_HOSTS = ("", "0.0.0.0", "127.0.0.1", "localhost")  # reached as localhost from this machine
_DEFAULT_KEY = ("RootManageSharedAccessKey", "emulator")  # connection strings need a key even if none is checked


class Emulator(Administration):
    """An Event Hubs namespace on this machine, between `start` and `stop` or as a context manager.

    With TLS clients need a `custom_endpoint_address`: they take the port from a connection string only without. For a
    websocket they always need one.
    """

    def __init__(self, hubs: Mapping[str, int] | None = None, **settings: Any) -> None:
        """`hubs` maps names to numbers of partitions, `settings` are the fields of `Settings`. Nothing happens before
        `start`. Raises ValueError for an invalid hub."""
        self._hubs = dict(hubs or {})
        for name, partitions in self._hubs.items():
            check_hub(name, partitions)
        self._settings = Settings(**settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._running: Server | None = None
        self._control: ControlServer | None = None
        self._certificates: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        """Listen. Raises OSError if the port is not available."""
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
        self._running = Server(self._settings, self._tls_context())
        for name, partitions in self._hubs.items():
            self._running.broker.add_hub(name, partitions)
        await self._running.start()

    def _tls_context(self) -> ssl.SSLContext | None:
        settings = self._settings
        if not settings.tls:
            return None
        others = () if settings.host in (*LOCAL_NAMES, *_LOCAL_HOSTS) else (settings.host,)
        self._certificates = tempfile.TemporaryDirectory(prefix="ehbalance-tls-")  # which only this user can read
        made = make(Path(self._certificates.name), (*LOCAL_NAMES, *others, *settings.tls_names))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(made.server_file)
        made.server_file.unlink()  # it holds the private key
        return context

    def stop(self) -> None:
        """Drop all connections; a second call does nothing."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        if self._control is not None:
            self._wait_for(self._control.stop())
        if self._running is not None:
            self._wait_for(self._running.stop())
        self._loop = self._thread = self._running = self._control = None
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
        """The port on which it listens. Raises RuntimeError unless it is started."""
        return self._server.port

    @property
    def websocket_port(self) -> int:
        """The port on which it takes websockets. Raises RuntimeError unless it is started with one."""
        if (port := self._server.websocket_port) is None:
            raise RuntimeError("the emulator was started without a port for websockets")
        return port

    @property
    def ca_file(self) -> Path:
        """The certificate by which clients verify the one that was made. Raises RuntimeError unless one was."""
        if self._certificates is None:
            raise RuntimeError("the emulator has made no certificate")
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

    def open_control_port(self, port: int = 0, host: str = "127.0.0.1") -> int:
        """Accept calls from other processes (`EmulatorControl`), with one of the keys if there are `sas_keys`; returns
        the port. Raises OSError."""
        keys = self._settings.sas_keys
        self._control = ControlServer(self._execute, None if keys is None else [*keys.values()])
        return self._wait_for(self._control.start(host, port))

    def append_encoded(self, hub: str, partition: str | int, *events: Event) -> None:
        """Store `events` as they are, also such as no sender could send; for tests of readers."""
        self._on_loop(lambda: self._log(hub, partition).append(events))

    def _on_hub(self, name: str, run: Callable[[Hub], _T]) -> _T:
        """Call `run` with a hub, on the server's loop. Raises ValueError if there is no such hub."""
        try:
            return self._on_loop(lambda: run(self._broker.hub(name)))
        except AmqpError as error:
            raise ValueError(error.description) from None

    @property
    def _server(self) -> Server:
        if self._running is None:
            raise RuntimeError("the emulator is not running")
        return self._running

    def _wait_for(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _invoke(self, call: str, arguments: Mapping[str, Any]) -> Any:
        _ = self._server
        return self._on_loop(lambda: self._execute(call, arguments))

    def _on_loop(self, run: Callable[[], _T]) -> _T:
        async def call() -> _T:
            return run()

        return self._wait_for(call())
