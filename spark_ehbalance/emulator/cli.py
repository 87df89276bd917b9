"""The command `ehbalance emulator`."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from spark_ehbalance.emulator.emulator import Emulator

_panel = functools.partial(typer.Option, rich_help_panel="Network, TLS, keys")


def emulator(
    hub: Annotated[list[str] | None, typer.Option(metavar="NAME:PARTITIONS", help="Event hub. Repeatable.")] = None,
    consumer_group: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Consumer group to create in every hub. Repeatable.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")] = 5672,
    host: Annotated[str, _panel(help="Address to listen on.")] = "127.0.0.1",
    websocket_port: Annotated[
        int | None, _panel(min=0, max=65535, help="Port for AMQP over websocket; 0 selects a free one.")
    ] = None,
    tls: Annotated[
        bool, _panel("--tls", help="Use TLS with a new certificate, and print the path of the CA file.")
    ] = False,
    sas_key: Annotated[
        list[str] | None,
        _panel(
            metavar="NAME=REFERENCE",
            help="Key that verifies tokens, as env:VARIABLE or file:PATH. Repeatable. Without keys, all tokens are "
            "accepted.",
        ),
    ] = None,
) -> None:
    """Run a local Event Hubs emulator until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        running = Emulator(
            _hubs(hub or []),
            sas_keys=dict(map(_key, sas_key)) if sas_key else None,
            consumer_groups=consumer_group or (),
            host=host,
            port=port,
            websocket_port=websocket_port,
            tls=tls,
        )
        note = "" if hub else " It has no event hub: add one with --hub NAME:PARTITIONS."
        _run(running, show_key=not sas_key, note=note)
    except ValueError as error:
        _fail(2, str(error))
    except ImportError as error:
        _fail(1, f"{error}: pip install 'spark-ehbalance[emulator]'")
    except OSError as error:
        help = "; --port 0 selects a free one" if error.errno == errno.EADDRINUSE else ""
        _fail(1, f"the emulator cannot start: {error}{help}")


def _fail(code: int, text: str) -> None:
    typer.echo(f"Error: {text}", err=True)
    raise typer.Exit(code) from None


def _run(server: Emulator, *, show_key: bool, note: str) -> None:
    """Start `server`, print one line, which ends with `note`, and stop the server on SIGTERM or SIGINT."""
    stopped = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stopped.set())
    with server:
        more = []
        with contextlib.suppress(RuntimeError):
            more.append(f"websocket port {server.websocket_port}")
        with contextlib.suppress(RuntimeError):
            more.append(f"CA file {server.ca_file}")
        rest = f" ({', '.join(more)})" if more else ""
        string = server.connection_string()
        if not show_key:
            string = re.sub("SharedAccessKey=[^;]*", "SharedAccessKey=(not shown)", string)
        print(f"Emulator ready: {string}{rest}{note}", flush=True)
        # on some systems a signal does not interrupt a wait without a timeout
        while not stopped.wait(1.0):
            pass


def _hubs(texts: list[str]) -> dict[str, int]:
    hubs: dict[str, int] = {}
    for text in texts:
        name, _, partitions = text.rpartition(":")
        if not (partitions.isascii() and partitions.isdecimal()):
            raise ValueError(f"--hub {text!r}: expected NAME:PARTITIONS, for example flights:8")
        hubs[name] = int(partitions)
    return hubs


def _key(text: str) -> tuple[str, str]:
    name, _, reference = text.partition("=")
    kind, _, place = reference.partition(":")
    if not name or kind not in ("env", "file"):  # the message does not repeat the text, which may contain a key
        raise ValueError("--sas-key: expected NAME=env:VARIABLE or NAME=file:PATH, because arguments are public")
    key = os.environ.get(place, "") if kind == "env" else Path(place).read_text("utf-8").strip()
    if not key:
        raise ValueError(f"--sas-key: the key of {name!r} is missing or empty")
    return name, key
