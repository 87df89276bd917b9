"""The command `ehbalance emulator`, also `python -m spark_ehbalance.emulator`."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_ehbalance.emulator.broker import check_hub
from spark_ehbalance.emulator.emulator import Emulator

_server_panel = functools.partial(typer.Option, rich_help_panel="Network, TLS, keys")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where the emulator listens, and whom it lets in."""

    host: Annotated[str, _server_panel(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 5672
    websocket_port: Annotated[
        int | None, _server_panel(help="Also AMQP over websocket, on this port; 0 takes a free one.")
    ] = None
    control_port: Annotated[
        int | None, _server_panel(help="Control calls, on this port of the loopback address; 0 takes a free one.")
    ] = None
    tls: Annotated[bool, _server_panel("--tls", help="TLS with a new certificate; prints the CA's file.")] = False
    sas_key: Annotated[
        list[str] | None,
        _server_panel(
            metavar="NAME=REFERENCE",
            help="Key to check tokens, as env:VARIABLE or file:PATH. Repeatable. Without one, all tokens are valid.",
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `Settings`. Raises `ValueError`, and `OSError` for a key's file."""
        return {
            "host": self.host,
            "port": _port("--port", self.port),
            "websocket_port": self.websocket_port and _port("--websocket-port", self.websocket_port),
            "tls": self.tls,
            "sas_keys": dict(map(_key, self.sas_key)) if self.sas_key else None,
        }


def emulator(
    server: ServerOptions,
    hub: Annotated[list[str] | None, typer.Option(metavar="NAME:PARTITIONS", help="Event hub. Repeatable.")] = None,
    management_requests: Annotated[
        int, typer.Option(help="Requests for properties per second and hub; 0 is no limit.")
    ] = 50,
    consumer_group: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Consumer group of every hub. Repeatable.")
    ] = None,
) -> None:
    """Run a local Event Hubs emulator until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    control = server.control_port
    try:
        running = Emulator(
            _hubs(hub or []),
            consumer_groups=consumer_group or (),
            **server.settings(),
            management_requests=_number("--management-requests", management_requests, 0),
        )
        empty = not hub and control is None
        note = " It has no event hub: --hub NAME:PARTITIONS makes one." if empty else ""
        _run(running, control and _port("--control-port", control), show_key=not server.sas_key, note=note)
    except ValueError as error:
        _fail(2, str(error))
    except ImportError as error:
        _fail(1, f"{error}: pip install 'spark-ehbalance[emulator]'")
    except OSError as error:
        help = "; --port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
        _fail(1, f"the emulator cannot start: {error}{help}")


def _fail(code: int, text: str) -> None:
    typer.echo(f"Error: {text}", err=True)
    raise typer.Exit(code) from None


def _run(server: Emulator, control_port: int | None, *, show_key: bool, note: str) -> None:
    """Start `server`, print one line when it is ready, which `note` ends, and stop it at SIGTERM or SIGINT."""
    stopped = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stopped.set())
    with server:
        more = [] if control_port is None else [f"control port {server.open_control_port(control_port)}"]
        with contextlib.suppress(RuntimeError):
            more.append(f"websocket port {server.websocket_port}")
        with contextlib.suppress(RuntimeError):
            more.append(f"CA file {server.ca_file}")
        rest = f" ({', '.join(more)})" if more else ""
        string = server.connection_string()
        if not show_key:
            string = re.sub("SharedAccessKey=[^;]*", "SharedAccessKey=(not shown)", string)
        print(f"Emulator ready: {string}{rest}{note}", flush=True)
        # waits with a timeout: on some systems a signal does not interrupt a wait without one
        while not stopped.wait(1.0):
            pass


def _port(option: str, number: int) -> int:
    if not 0 <= number <= 65535:
        raise ValueError(f"{option} {number}: allowed are 0 to 65535")
    return number


def _number(option: str, number: int, least: int) -> int:
    if number < least:
        raise ValueError(f"{option} {number}: allowed are numbers from {least} on")
    return number


def _hubs(texts: list[str]) -> dict[str, int]:
    hubs: dict[str, int] = {}
    for text in texts:
        name, _, partitions = text.rpartition(":")
        if not (partitions.isascii() and partitions.isdecimal()):
            raise ValueError(f"--hub {text!r}: expected NAME:PARTITIONS, for example flights:8")
        try:
            check_hub(name, int(partitions))
        except ValueError as error:
            raise ValueError(f"--hub {text!r}: {error}") from None
        if name.lower() in map(str.lower, hubs):
            raise ValueError(f"--hub {text}: event hub {name} is given twice")
        hubs[name] = int(partitions)
    return hubs


def _key(text: str) -> tuple[str, str]:
    name, _, reference = text.partition("=")
    kind, _, place = reference.partition(":")
    if not name or kind not in ("env", "file"):  # the text is not repeated: it may contain a key
        raise ValueError("--sas-key: expected NAME=env:VARIABLE or NAME=file:PATH, as all can see arguments")
    key = os.environ.get(place, "") if kind == "env" else Path(place).read_text("utf-8").strip()
    if not key:
        raise ValueError(f"--sas-key: the reference of {name!r} leads to no key")
    return name, key
