"""The private parts of azure-eventhub that are used: any version that has them is taken, no other is read with."""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import azure.eventhub

from spark_ehbalance.errors import ClientVersionError
from spark_ehbalance.eventhub.wire.sources import incompatible_transport

#: The version of azure-eventhub with which this package's tests pass.
TESTED = "5.15.1"

#: The attributes of the client's objects, in the order of `check_usable`.
_USED = {
    "handler": "_connection _session _cbs_authenticator _keep_alive_thread",
    "connection": "_transport _incoming_endpoints _process_incoming_frame _incoming_end _get_remote_timeout "
    "_max_frame_size _last_frame_received_time _error state",
    "session": "next_incoming_id incoming_window target_incoming_window remote_outgoing_window _input_handles state",
    "link": "remote_handle delivery_count current_link_credit flow get_state",
    "transport": "sock close frames",
    "token": "handle_token _expires_on _refresh_window",
}

#: Seconds after which a connection is looked for again that was to be cut off, and had no socket yet.
_AGAIN = 0.1

_PYAMQP = "azure.eventhub._pyamqp"

#: The names in the client's modules, imported where they are used: this package can be imported without them.
_IMPORTED = {
    "_encode": "encode_payload",
    "error": "AMQPConnectionError ErrorCondition",
    "management_operation": "ManagementOperation",
    "message": "Message Properties",
}


def unusable(reason: str) -> ClientVersionError:
    """The error for an installed client that is not as expected."""
    return ClientVersionError(
        f"azure-eventhub {azure.eventhub.__version__} on {socket.gethostname()} cannot be used, and nothing is read: "
        f"{reason}. Events are received through parts of it that may differ between versions. Install the tested one "
        f"on the driver and on every executor: pip install azure-eventhub=={TESTED}"
    )


@contextlib.contextmanager
def private_calls() -> Iterator[None]:
    """Around calls of private parts: raises `ClientVersionError` if one is missing or takes other arguments."""
    try:
        yield
    except (AttributeError, TypeError, ImportError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals["__name__"].startswith("spark_ehbalance."):  # raised in the client, by what has come
            raise
        raise unusable(f"its client is not as expected: {error}") from error


@contextlib.contextmanager
def cut_off_after(seconds: float, connection: Callable[[], Any]) -> Iterator[None]:
    """Shut down the socket of the client's `connection` if the block takes longer than `seconds`: a read from it fails
    then. The client has no time limit while a peer is silent in SASL."""
    deadline = time.monotonic() + seconds
    with cut_off_at(lambda: deadline, connection):
        yield


@contextlib.contextmanager
def cut_off_at(deadline: Callable[[], float], connection: Callable[[], Any]) -> Iterator[None]:
    """As `cut_off_after`, at a monotonic time that the block may postpone."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(max(_AGAIN, deadline() - time.monotonic())):
            # There may be no socket yet, or it may be closed.
            with contextlib.suppress(AttributeError, TypeError, OSError):
                if time.monotonic() >= deadline():
                    opened = connection()._transport.sock
                    # A websocket has one below. Python's own method for TLS ends that first: what another thread
                    # writes then would be sent as it is.
                    socket.socket.shutdown(getattr(opened, "sock", opened), socket.SHUT_RDWR)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def check_open(connection: Any, session: Any, link: Any) -> None:
    """Raise the error that has ended the client's connection, session or link."""
    from azure.eventhub._pyamqp.error import AMQPConnectionError, ErrorCondition

    state = link.get_state()  # raises the link's own error, which may have ended the connection
    if connection._error:
        raise connection._error
    states = (connection.state.name, session.state.name, state.name)
    if states != ("OPENED", "MAPPED", "ATTACHED"):
        raise AMQPConnectionError(
            condition=ErrorCondition.ConnectionCloseForced,
            description=f"The connection, session and link are {', '.join(states)}.",
        )


def check_usable(handler: Any, link: Any, *, granted: int = 0) -> None:
    """Raise `ClientVersionError` unless the open `link` of the client's `handler` can be read here. To be called within
    `private_calls`.

    `granted` is the credit that the client should have granted on the link already.
    """
    connection = handler._connection
    objects = (handler, connection, handler._session, link, connection._transport, handler._cbs_authenticator)
    used = zip(_USED.items(), objects, strict=True)
    missing = [f"{what}.{name}" for (what, names), each in used for name in _lacks(each, names)]
    for module, names in _IMPORTED.items():
        missing += [f"{module}.{name}" for name in _lacks(importlib.import_module(f"{_PYAMQP}.{module}"), names)]
    if missing:
        raise unusable(f"its client lacks {', '.join(missing)}")
    if (reason := incompatible_transport(connection._transport)) is not None:
        raise unusable(reason)
    if connection._transport.frames.taken_over() is None:
        raise unusable("it reads its frames in another way")
    if handler._keep_alive_thread is not None:
        raise unusable("a thread of its own reads the same socket")
    if link.current_link_credit != granted:
        raise unusable("its counters are not as expected")


def _lacks(part: Any, names: str) -> list[str]:
    return [name for name in names.split() if not hasattr(part, name)]
