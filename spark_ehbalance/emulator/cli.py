"""The command `ehbalance emulator`, also `python -m spark_ehbalance.emulator`."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import signal
import ssl
import threading
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from .broker import check_hub
from .emulator import Emulator
from .partition_log import LogCorruptError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def emulator(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 5672,
    hub: Annotated[list[str] | None, typer.Option(metavar="NAME:PARTITIONS", help="A hub; may be repeated.")] = None,
    data: Annotated[Path | None, typer.Option(help="Directory for the events; without it, memory.")] = None,
    retention: Annotated[str, typer.Option(help="Age at which events are deleted: a number and s, m, h or d.")] = "7d",
    consumer_group: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A consumer group of every hub; may be repeated.")
    ] = None,
    sas_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REFERENCE",
            help="A key to check tokens, in env:VARIABLE or file:PATH; may be repeated. Without one, all are valid.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Listen with TLS, with this PEM file of a private key and its certificate.")
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Listen with TLS, with a certificate made on the spot; prints the CA's file.")
    ] = False,
    websocket_port: Annotated[
        int | None, typer.Option(help="Also take AMQP over websocket, on this port; 0 takes a free one.")
    ] = None,
    max_connections: Annotated[int, typer.Option(help="Connections that are accepted at a time.")] = 5000,
    management_requests: Annotated[
        int, typer.Option(help="Requests for properties that a hub answers in a second; 0 is no limit.")
    ] = 50,
    unsettled: Annotated[
        bool, typer.Option("--unsettled", help="Deliver events unsettled, each with a tag of its own.")
    ] = False,
    idle_link_timeout: Annotated[
        str, typer.Option(help="Detach a link without traffic after this time: a number and s, m, h or d.")
    ] = "30m",
    geo_replicated: Annotated[
        bool, typer.Option("--geo-replicated", help="Offsets as a geo-replicated namespace has them, and promotions.")
    ] = False,
    control_port: Annotated[
        int | None, typer.Option(help="Accept control calls on this port of the loopback address; 0 takes a free one.")
    ] = None,
) -> None:
    """Run a local Event Hubs emulator until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        server = Emulator(
            _hubs(hub or []),
            host=host,
            port=_port("--port", port),
            data_dir=data,
            retention=_duration("--retention", retention),
            consumer_groups=consumer_group or (),
            sas_keys=dict(_key(text) for text in sas_key) if sas_key else None,
            certificate=certificate,
            tls=tls,
            websocket_port=websocket_port and _port("--websocket-port", websocket_port),
            max_connections=_number("--max-connections", max_connections, 1),
            management_requests=_number("--management-requests", management_requests, 0) or None,
            settled=not unsettled,
            idle_link_timeout=_duration("--idle-link-timeout", idle_link_timeout).total_seconds(),
            geo_replicated=geo_replicated,
        )
        control = control_port and _port("--control-port", control_port)
        empty = not hub and data is None and control_port is None
        note = " It has no event hub: --hub NAME:PARTITIONS makes one." if empty else ""
        _run(server, control, show_key=not sas_key, note=note)
    except ValueError as error:
        _fail(2, str(error))
    except ImportError as error:
        _fail(1, f"{error}: pip install 'spark-ehbalance[emulator]'")
    except (OSError, LogCorruptError) as error:
        wrong = f"--certificate {certificate}: expected a PEM file of a private key and its certificate: "
        help = "; --port 0 takes a free one" if getattr(error, "errno", None) == errno.EADDRINUSE else ""
        which = wrong if certificate and (isinstance(error, ssl.SSLError) or not certificate.is_file()) else ""
        _fail(1, f"the emulator cannot start: {which}{error}{help}")


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


def _duration(option: str, text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{option} {text!r}: expected a number over 0 and s, m, h or d, for example 7d")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


def _key(text: str) -> tuple[str, str]:
    name, _, reference = text.partition("=")
    kind, _, place = reference.partition(":")
    if not name or kind not in ("env", "file"):  # the text is not repeated: it may contain a key
        raise ValueError("--sas-key: expected NAME=env:VARIABLE or NAME=file:PATH, as all can see arguments")
    key = os.environ.get(place, "") if kind == "env" else Path(place).read_text("utf-8").strip()
    if not key:
        raise ValueError(f"--sas-key: the reference of {name!r} leads to no key")
    return name, key
