"""Questions to a hub's `$management`, all in one write, and their answers, in as few reads as they come in.

The client has opened and authenticated the connection and attached the two links. It encodes each question once; from
then on only the number of the question in it changes.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from spark_ehbalance.hub.wire.link import FastLink, incompatibility
from spark_ehbalance.hub.wire.messages import APPLICATION, PROPERTIES, VALUE
from spark_ehbalance.hub.wire.values import MALFORMED, MalformedError, decode

#: The name of a question, and its properties.
Question = tuple[str, tuple[tuple[str, str], ...]]

#: What the client grants its peer on a management link when that is attached.
_GRANTED = 10_000

#: Answers under way at the most.
_CREDIT = 1_000

#: Stands for the number of a question in what the client has encoded; hexadecimal.
_NUMBER = "ffffffff"

#: A transfer frame of one unsettled message: size, header, descriptor, list of six fields (handle, delivery id, tag,
#: format 0, not settled, no more).
_TRANSFER = struct.Struct(">I2BH 3s3B BI BI 2BI 3B")

#: Where in the properties section.
_CORRELATION = 5

#: Seconds in which answers gather before they are read: each comes in a packet of its own, and a read for each would
#: cost more than all the rest.
_GATHER = 0.002

_DISPOSITION = b"\x00\x53\x15"


class Management:
    """Asks over the open management link `operation` of the client's `handler`; see `management_incompatibility`.

    `refusal` makes the error to raise of a status and its description. All else that is raised is as for `HotLink`.
    """

    def __init__(self, handler: Any, operation: Any, refusal: Callable[[int, str], Exception]) -> None:
        link = operation._mgmt_link
        self._sender = link._request_link
        self._session = handler._session
        self._transport = handler._connection._transport
        self._most = handler._connection._remote_max_frame_size
        self._answers = _Answers(handler, link._response_link, _CREDIT)
        self._refusal = refusal
        self._token = ""
        self._encoded: dict[Question, tuple[bytes, bytes]] = {}  # before its number and after it
        self._number = 0

    def ask(self, schedule: Sequence[Question], token: str, timeout: float) -> list[Any]:
        """The answer to each question, whatever it is, asked with the security `token`.

        Raises TimeoutError if they have not all come within `timeout` seconds.
        """
        if token != self._token:
            self._token = token
            self._encoded.clear()
        deadline = time.monotonic() + timeout
        unsent, waiting, answers = list(enumerate(schedule))[::-1], dict[bytes, int](), dict[int, Any]()
        while unsent or waiting:
            now_sent = bytearray()
            for _ in range(min(len(unsent), self._sender.current_link_credit, self._session.remote_incoming_window)):
                index, question = unsent.pop()
                number = f"{self._number:08x}".encode()
                self._number = (self._number + 1) % 0xFFFFFFFF
                waiting[number] = index
                now_sent += self._frame(question, number)
            if now_sent:
                self._transport.write(now_sent)
                time.sleep(_GATHER)
            for number, answer in self._receive(max(1, len(waiting)), deadline - time.monotonic()):
                if number in waiting:
                    answers[waiting.pop(number)] = answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(unsent) + len(waiting)} answers have not come within {timeout:g} s")
        return [answers[index] for index in range(len(schedule))]

    def _frame(self, question: Question, number: bytes) -> bytes:
        if question not in self._encoded:
            self._encoded[question] = _encode(question, self._token)
        before, after = self._encoded[question]
        sender, session = self._sender, self._session
        tag = (sender.delivery_count + 1) & 0xFFFFFFFF
        head = _TRANSFER.size
        size = head + len(before) + len(number) + len(after)
        if size > self._most:
            raise MalformedError(f"a question of {size} bytes, where the peer takes {self._most}")
        frame = _TRANSFER.pack(
            size, 2, 0, session.channel,
            b"\x00\x53\x14", 0xC0, head - 13, 6,
            0x70, sender.handle, 0x70, session.next_outgoing_id & 0xFFFFFFFF, 0xA0, 4, tag, 0x43, 0x42, 0x42,
        )  # fmt: skip
        session.next_outgoing_id += 1
        session.remote_incoming_window -= 1
        session.outgoing_window -= 1
        sender.delivery_count += 1
        sender.current_link_credit -= 1
        return frame + before + number + after

    def _receive(self, most: int, wait: float) -> list[tuple[bytes, Any]]:
        data, starts, ends, joined = self._answers.receive(most, wait)
        try:
            with memoryview(data) as view:
                messages = [joined[-1 - s] if s < 0 else bytes(view[s:e]) for s, e in zip(starts, ends, strict=True)]
        finally:
            self._answers.release()
        return [self._answer(message) for message in messages]

    def _answer(self, message: bytes) -> tuple[bytes, Any]:
        """The number of the question that `message` answers, and what it says."""
        sections: dict[int, Any] = {}
        pos = 0
        try:
            while pos < len(message):
                section, pos = decode(message, pos + 1)
                sections[section], pos = decode(message, pos)
            number, said = sections[PROPERTIES][_CORRELATION], sections[APPLICATION]
            status, description = int(said[b"status-code"]), said.get(b"status-description")
            if not isinstance(number, bytes):
                raise ValueError("it does not say which question it answers")
        except (*MALFORMED, KeyError, AttributeError) as error:
            raise MalformedError(f"an answer that is no sound AMQP: {error!r}") from error
        if status >= 400:
            raise self._refusal(status, description.decode(errors="replace") if isinstance(description, bytes) else "")
        return number, sections.get(VALUE)


class _Answers(FastLink):
    """Reads answers. That a question was received is told by its answer."""

    def _foreign(self, channel: int, frame: bytes) -> None:
        if frame[4 * frame[4] :][:3] != _DISPOSITION:
            super()._foreign(channel, frame)


def management_incompatibility(handler: Any, operation: Any) -> str | None:
    """Why the client's open management link `operation` cannot be used from here; None if it can."""
    try:
        link = operation._mgmt_link
        sender, session = link._request_link, handler._session
        counters = (
            sender.handle, sender.delivery_count, sender.current_link_credit,
            session.channel, session.next_outgoing_id, session.remote_incoming_window, session.outgoing_window,
            handler._connection._remote_max_frame_size,
        )  # fmt: skip
        if not all(isinstance(each, int) for each in counters) or not callable(handler._connection._transport.write):
            return "its management link is not as expected"
        return incompatibility(handler, link._response_link, granted=_GRANTED)
    except AttributeError as error:
        return f"its management link is not as expected: {error}"


def _encode(question: Question, token: str) -> tuple[bytes, bytes]:
    # here and not above: another version may not have it
    from azure.eventhub._pyamqp._encode import encode_payload
    from azure.eventhub._pyamqp.message import Message, Properties

    name, properties = question
    output = bytearray()
    application: dict[str | bytes, Any] = {
        **dict(properties),
        "security_token": token,
        "operation": "READ",
        "type": name,
    }
    encode_payload(output, Message(properties=Properties(message_id=_NUMBER), application_properties=application))
    before, _, after = bytes(output).partition(_NUMBER.encode())
    return before, after
