"""Checks that azure-eventhub has the internals that this package uses: any version that has them is supported."""

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

#: The version of azure-eventhub with which this package is tested.
TESTED = "5.15.1"

#: The attributes that this package uses, by client object, in the order in which `check_usable` lists the objects.
_ATTRIBUTES = {
    "handler": "_connection _session _cbs_authenticator _keep_alive_thread",
    "connection": "_transport _incoming_endpoints _process_incoming_frame _incoming_end _get_remote_timeout "
    "_max_frame_size _last_frame_received_time _error state",
    "session": "next_incoming_id incoming_window target_incoming_window remote_outgoing_window _input_handles state",
    "link": "remote_handle delivery_count current_link_credit flow get_state",
    "transport": "sock close frames",
    "token": "handle_token _expires_on _refresh_window",
}

#: Seconds after which to retry shutting down a connection that has no socket yet.
_RETRY_SECONDS = 0.1

_PYAMQP = "azure.eventhub._pyamqp"

#: Names in the client's modules, imported where they are used, so that this package can be imported without them.
_IMPORTED = {
    "_encode": "encode_payload",
    "error": "AMQPConnectionError ErrorCondition",
    "management_operation": "ManagementOperation",
    "message": "Message Properties",
}


def unsupported(reason: str) -> ClientVersionError:
    """The error for an installed client whose internals are not as expected."""
    version, host = azure.eventhub.__version__, socket.gethostname()
    return ClientVersionError("EHB_CLIENT_UNSUPPORTED", version=version, host=host, reason=reason, tested=TESTED)


@contextlib.contextmanager
def private_calls() -> Iterator[None]:
    """Wrap calls to the client's internals. Raises `ClientVersionError` if a name is missing or takes different
    arguments."""
    try:
        yield
    except (AttributeError, TypeError, ImportError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals["__name__"].startswith(
            "spark_ehbalance."
        ):  # raised inside the client, for example by received data
            raise
        raise unsupported(f"a private attribute or method is not as expected: {error}") from error


@contextlib.contextmanager
def cut_off_after(seconds: float, connection: Callable[[], Any]) -> Iterator[None]:
    """Shut down the socket of the client's `connection` if the block takes longer than `seconds`, so that reads fail.
    The client itself does not time out if the peer goes silent during the SASL handshake."""
    deadline = time.monotonic() + seconds
    with cut_off_at(lambda: deadline, connection):
        yield


@contextlib.contextmanager
def cut_off_at(deadline: Callable[[], float], connection: Callable[[], Any]) -> Iterator[None]:
    """Like `cut_off_after`, but at a monotonic time, which the block may postpone."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(max(_RETRY_SECONDS, deadline() - time.monotonic())):
            # The socket may not exist yet, or may be closed.
            with contextlib.suppress(AttributeError, TypeError, OSError):
                if time.monotonic() >= deadline():
                    opened = connection()._transport.sock
                    # A websocket object wraps the socket. The TLS socket's own `shutdown` would end TLS first, so that
                    # other threads' writes would be sent unencrypted.
                    socket.socket.shutdown(getattr(opened, "sock", opened), socket.SHUT_RDWR)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def check_open(connection: Any, session: Any, link: Any) -> None:
    """Raise the error that ended the client's connection, session or link."""
    state = link.get_state()  # raises the link's error, which may have ended the connection
    if connection._error:
        raise connection._error
    states = (connection.state.name, session.state.name, state.name)
    if states != ("OPENED", "MAPPED", "ATTACHED"):
        from azure.eventhub._pyamqp.error import AMQPConnectionError, ErrorCondition

        raise AMQPConnectionError(
            condition=ErrorCondition.ConnectionCloseForced,
            description=f"The connection, session and link are {', '.join(states)}.",
        )


def check_usable(handler: Any, link: Any, *, granted: int = 0) -> None:
    """Raise `ClientVersionError` unless this package can read from the open `link` of the client's `handler`. Call it
    within `private_calls`.

    `granted` is the credit that the client should have granted on the link.
    """
    connection = handler._connection
    objects = (handler, connection, handler._session, link, connection._transport, handler._cbs_authenticator)
    used = zip(_ATTRIBUTES.items(), objects, strict=True)
    missing = [f"{what}.{name}" for (what, names), part in used for name in _find_missing(part, names)]
    for module, names in _IMPORTED.items():
        missing += [f"{module}.{name}" for name in _find_missing(importlib.import_module(f"{_PYAMQP}.{module}"), names)]
    if missing:
        raise unsupported(f"missing private attributes: {', '.join(missing)}")
    if (reason := incompatible_transport(connection._transport)) is not None:
        raise unsupported(reason)
    if connection._transport.frames.takeover_state() is None:
        raise unsupported("it does not read frames with `receive_frame`")
    if handler._keep_alive_thread is not None:
        raise unsupported("its keep-alive thread reads the same socket")
    if link.current_link_credit != granted:
        raise unsupported("its link credit is not as expected")


def _find_missing(part: Any, names: str) -> list[str]:
    return [name for name in names.split() if not hasattr(part, name)]
