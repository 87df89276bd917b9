"""Sends requests to a hub's `$management` node in one write, and reads the responses in as few reads as possible.

The client opens the connection and the links, and encodes each request once. Repeated requests differ only in their id.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from spark_ehbalance.eventhub.wire.client import check_open, check_usable
from spark_ehbalance.eventhub.wire.link import LinkReader
from spark_ehbalance.eventhub.wire.messages import APPLICATION, PROPERTIES, VALUE
from spark_ehbalance.eventhub.wire.values import MALFORMED, MalformedError, decode

#: A request: an entity type, and properties as names and values.
ManagementRequest = tuple[str, tuple[tuple[str, str], ...]]

#: Credit that the client grants on a management link when the link is attached.
_GRANTED = 10_000

#: Credit for responses.
_CREDIT = 1_000

#: Placeholder for the request's id, eight hexadecimal digits, in the message that the client encodes.
_PLACEHOLDER = "ffffffff"
_IDS = 0xFFFFFFFF

#: A transfer frame of one unsettled message: the size, the header, the descriptor, and a list of six fields (handle,
#: delivery id, tag, message format 0, settled=false, more=false).
_TRANSFER = struct.Struct(">I2BH 3s3B BI BI 2BI 3B")

#: The index of the correlation id in the properties section.
_CORRELATION_ID = 5

#: Seconds to collect responses before reading them. Each response arrives in its own packet, and a separate read for
#: each would dominate the cost.
_GATHER = 0.002

_DISPOSITION = b"\x00\x53\x15"


class Management:
    """Sends requests over `operation`, the open management link of the client's `handler`. Create it within
    `private_calls`. Raises `ClientVersionError`.

    `refusal` returns the error for a status and its description. Methods raise the errors of `LinkReader`.
    """

    def __init__(self, handler: Any, operation: Any, refusal: Callable[[int, str], Exception]) -> None:
        link = operation._mgmt_link
        check_usable(handler, link._response_link, granted=_GRANTED)
        self._sender = link._request_link
        self._session = handler._session
        self._transport = handler._connection._transport
        self._responses = _Responses(handler, link._response_link, self._sender)
        self._refusal = refusal
        self._token = ""
        self._encoded: dict[ManagementRequest, tuple[bytes, bytes]] = {}  # the parts before and after the id
        self._ids = count()

    def request(self, requests: Sequence[ManagementRequest], token: str, timeout: float) -> list[Any]:
        """The responses to `requests`, which are sent with the security `token`. In place of a refused request's
        response, the list contains the error that `refusal` returned.

        Raises TimeoutError if a response is missing after `timeout` seconds.
        """
        if token != self._token:
            self._token = token
            self._encoded.clear()
        deadline = time.monotonic() + timeout
        unsent, waiting, responses = list(enumerate(requests))[::-1], dict[bytes, int](), dict[int, Any]()
        while unsent or waiting:
            frames = bytearray()
            for _ in range(min(len(unsent), self._allowed())):
                index, request = unsent.pop()
                request_id = f"{next(self._ids) % _IDS:08x}".encode()
                waiting[request_id] = index
                frames += self._frame(request, request_id)
            if frames:
                self._transport.write(frames)
                time.sleep(_GATHER)
            if waiting:
                for request_id, response in self._receive(len(waiting), deadline - time.monotonic()):
                    if request_id in waiting:
                        responses[waiting.pop(request_id)] = response
            elif unsent:
                self._responses.read_until(lambda: self._allowed() > 0, deadline - time.monotonic())
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(unsent) + len(waiting)} responses are missing after {timeout:g} s")
        return [responses[index] for index in range(len(requests))]

    def _allowed(self) -> int:
        """Number of requests that the peer accepts now."""
        return int(min(self._sender.current_link_credit, self._session.remote_incoming_window))

    def _frame(self, request: ManagementRequest, request_id: bytes) -> bytes:
        if request not in self._encoded:
            self._encoded[request] = encode(request, self._token)
        before, after = self._encoded[request]
        sender, session = self._sender, self._session
        tag = (sender.delivery_count + 1) & 0xFFFFFFFF
        head = _TRANSFER.size
        frame = _TRANSFER.pack(
            head + len(before) + len(request_id) + len(after), 2, 0, session.channel,
            b"\x00\x53\x14", 0xC0, head - 13, 6,
            0x70, sender.handle, 0x70, session.next_outgoing_id & 0xFFFFFFFF, 0xA0, 4, tag, 0x43, 0x42, 0x42,
        )  # fmt: skip
        session.next_outgoing_id += 1
        session.remote_incoming_window -= 1
        session.outgoing_window -= 1
        sender.delivery_count += 1
        sender.current_link_credit -= 1
        return frame + before + request_id + after

    def _receive(self, most: int, wait: float) -> list[tuple[bytes, Any]]:
        try:
            messages = list(self._responses.receive(most, wait))
        finally:
            self._responses.release()
        return [read_response(message, self._refusal) for message in messages]


class _Responses(LinkReader):
    """Reads responses. Ignores dispositions, because a response implies that its request was received."""

    def __init__(self, handler: Any, link: Any, request_link: Any) -> None:
        super().__init__(handler, link, _CREDIT)
        self._request_link = request_link

    def _check(self) -> None:
        super()._check()
        check_open(self._connection, self._session, self._request_link)

    def _other_frame(self, channel: int, frame: bytes) -> None:
        if frame[4 * frame[4] :][:3] != _DISPOSITION:
            super()._other_frame(channel, frame)


def encode(request: ManagementRequest, token: str) -> tuple[bytes, bytes]:
    """The parts of a request's message before and after its id."""
    from azure.eventhub._pyamqp._encode import encode_payload
    from azure.eventhub._pyamqp.message import Message, Properties

    entity, properties = request
    output = bytearray()
    application: dict[str | bytes, Any] = {
        **dict(properties),
        "security_token": token,
        "operation": "READ",
        "type": entity,
    }
    encode_payload(output, Message(properties=Properties(message_id=_PLACEHOLDER), application_properties=application))
    before, _, after = bytes(output).partition(_PLACEHOLDER.encode())
    return before, after


def read_response(message: bytes, refusal: Callable[[int, str], Exception]) -> tuple[bytes, Any]:
    """The id of the request, and the response's value or the error that `refusal` returned. Raises `MalformedError`."""
    sections: dict[int, Any] = {}
    pos = 0
    try:
        while pos < len(message):
            section, pos = decode(message, pos + 1)
            sections[section], pos = decode(message, pos)
        request_id, application = sections[PROPERTIES][_CORRELATION_ID], sections[APPLICATION]
        status, description = int(application[b"status-code"]), application.get(b"status-description")
        if not isinstance(request_id, bytes):
            raise ValueError("no correlation id")
    except (*MALFORMED, KeyError, AttributeError) as error:
        raise MalformedError(f"an invalid AMQP response: {error!r}") from error
    if status >= 400:
        parts = (description, application.get(b"error-condition"))
        text = " ".join(part.decode(errors="replace") for part in parts if isinstance(part, bytes))
        return request_id, refusal(status, text)
    return request_id, sections.get(VALUE)
