"""Frames in buffers: every message is found once and in order, however it is framed and the stream is split."""

from __future__ import annotations

import struct
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.eventhub.wire import transfers
from spark_ehbalance.eventhub.wire.transfers import SLACK, RawMessages, Transfers
from spark_ehbalance.eventhub.wire.values import MalformedError
from tests.eventhub.encodings import compound, text

CHANNEL, HANDLE, MAX_FRAME = 1, 3, 1 << 16


#: Finders that compare frames of one size at once where that pays off, or always.
FINDERS = {
    "where it pays": partial(Transfers, CHANNEL, HANDLE, MAX_FRAME),
    "everywhere": partial(Transfers, CHANNEL, HANDLE, MAX_FRAME, run_pays=2, run_pause=0),
}


@pytest.fixture(scope="module", params=FINDERS)
def make(request: pytest.FixtureRequest) -> partial[Transfers]:
    """Creates a finder."""
    return FINDERS[request.param]


def frame(body: bytes, channel: int = CHANNEL, extended: bytes = b"", kind: int = 0) -> bytes:
    """A frame; `extended` is an extended header whose length is a multiple of four bytes."""
    return struct.pack(">IBBH", 8 + len(extended + body), 2 + len(extended) // 4, kind, channel) + extended + body


def transfer(fields: list[bytes], payload: bytes, wide: bool = False) -> bytes:
    return b"\x00\x53\x14" + compound(0xC0, len(fields), b"".join(fields), wide) + payload


def uint(value: int, form: int = 4) -> bytes:
    """An unsigned int encoded in 0, 1 or 4 bytes if `form` allows it."""
    if form == 0 and value == 0:
        return b"\x43"
    return bytes((0x52, value)) if form <= 1 and value < 256 else b"\x70" + struct.pack(">I", value)


YES, NO, NULL = (b"\x41", b"\x56\x01"), (b"\x42", b"\x56\x00", b"\x40"), b"\x40"


#: The encoding of consecutive frames: (wide lists, form of integers, bytes of a tag).
Encoding = tuple[bool, int, int]
ENCODINGS: st.SearchStrategy[Encoding] = st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 20))


def own(
    draw: st.DrawFn,
    encoding: Encoding,
    number: int,
    part: bytes,
    *,
    more: bool,
    aborted: bool = False,
    first: bool = True,
) -> bytes:
    """A frame of delivery `number`."""
    wide, form, tag_size = encoding
    tag = text(bytes((number,)) * tag_size, 0xA0)
    identity = [uint(number, form), tag] if first or draw(st.booleans()) else [NULL, NULL]
    flags = [YES[0], draw(st.sampled_from(YES if more else NO)), NULL, NULL, NULL]
    flags.append(draw(st.sampled_from(YES if aborted else NO)))
    if not aborted and draw(st.booleans()):
        del flags[2 if more else draw(st.integers(1, 5)) :]
    fields = [uint(HANDLE, form), *identity, uint(0, form), *flags]
    return frame(transfer(fields, part, wide), extended=draw(st.sampled_from([b"", b"", b"", bytes(4)])))


def other_frame(kind: str, payload: bytes) -> bytes:
    fields = [uint(HANDLE + (kind == "handle")), uint(0), text(b"t", 0xA0)]
    if kind == "empty":
        return frame(b"", 0)
    if kind == "flow":
        return frame(b"\x00\x53\x13" + compound(0xC0, 1, NULL))
    return frame(transfer(fields, payload), CHANNEL + (kind == "channel"), kind=int(kind == "sasl"))


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[tuple[bytes, bool]], list[bytes]]:
    """Frames with a flag whether they belong to the link, and the messages that they contain for it."""
    frames: list[tuple[bytes, bool]] = []
    messages: list[bytes] = []
    encoding = draw(ENCODINGS)
    for number in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 5)) == 0:
            encoding = draw(ENCODINGS)
        kind = draw(st.sampled_from(["whole"] * 6 + ["split", "aborted", "other"]))
        payload = draw(st.binary(max_size=30)) if draw(st.booleans()) else bytes(draw(st.integers(0, 300)))
        if kind == "whole":
            several = draw(st.sampled_from([1, 1, 2, 3, 5, 100]))
            frames += [(own(draw, encoding, number, payload, more=False), True)] * several
            messages += [payload] * (several - 1)
        elif kind == "split":
            cuts = sorted(draw(st.lists(st.integers(0, len(payload)), min_size=1, max_size=3)))
            parts = [payload[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
            for at, part in enumerate(parts):
                frames.append((own(draw, encoding, number, part, more=at < len(parts) - 1, first=at == 0), True))
        elif kind == "aborted":
            frames.append((own(draw, encoding, number, payload, more=True), True))
            frames.append((own(draw, encoding, number, b"", more=draw(st.booleans()), aborted=True, first=False), True))
        else:
            other = draw(st.sampled_from(["handle", "channel", "empty", "flow", "sasl"]))
            frames.append((other_frame(other, payload), False))
        if kind in ("whole", "split"):
            messages.append(payload)
    return frames, messages


@settings(deadline=None)
@given(sent=deliveries(), data=st.data())
def test_every_message_is_found_once_and_in_order(
    make: partial[Transfers], sent: tuple[list[tuple[bytes, bool]], list[bytes]], data: st.DataObject
) -> None:
    frames, messages = sent
    others = [(at, other) for at, (other, is_own) in enumerate(frames) if not is_own]
    stream = b"".join(encoded for encoded, _ in frames)
    stale = data.draw(st.sampled_from([b"\x00", b"\xff"])) * SLACK + stream[:SLACK] + bytes(SLACK)
    found, counted = make(), 0
    got: list[bytes] = []
    met: list[bytes] = []

    def meet(channel: int, other: bytes) -> None:
        nonlocal counted
        counted += found.take_counts()[0]
        assert counted + len(met) == others[len(met)][0]  # all frames before it were counted
        met.append(other)

    end = pos = 0
    while end < len(stream):
        end = min(len(stream), end + data.draw(st.integers(1, 400)))
        data_so_far = bytearray(stream[:end] + stale)
        pos = found.find(data_so_far, pos, end, meet)
        got += found.messages(data_so_far, 0, len(found))
        found.clear()
    assert pos == len(stream)
    assert got == messages
    assert met == [other for _, other in others]
    assert counted + found.take_counts()[0] == len(frames) - len(met)


def find(found: Transfers, stream: bytes) -> RawMessages:
    data = bytearray(stream + bytes(SLACK))
    found.find(data, 0, len(stream), lambda channel, other: None)
    return found.messages(data, 0, len(found))


WHOLE = [uint(HANDLE), uint(0), text(b"t", 0xA0), uint(0), YES[0], NO[0], NULL, NULL, NULL, NO[0]]


def sized(size: int) -> bytes:
    """A frame that claims to have `size` bytes."""
    return struct.pack(">I", size) + frame(transfer(WHOLE, b"x"))[4:]


MORE = frame(transfer([*WHOLE[:5], YES[0]], bytes(1000)))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        *((sized(size), f"a frame of {size} bytes") for size in (0, 7, MAX_FRAME + 1, 2**32 - 1)),
        (MORE * 6, "a delivery of more than 5000 bytes"),
        (frame(b"\x00\x53\x14\xd0" + struct.pack(">II", 4, 2**32 - 1)), "an invalid AMQP transfer"),
        (
            frame(b"\x00\x53\x14\xd0" + struct.pack(">IIBIIB", 4, 1, 0xF0, 5, 2**32 - 1, 0x40)),
            "an invalid AMQP transfer",
        ),
        (frame(b"\x00\x53\x14\x41"), "an invalid AMQP transfer"),
        (frame(b"\x00\x53\x14"), "an invalid AMQP transfer"),
        (frame(b"\x00\x53\x14\xc0\x01\x01"), "an invalid AMQP transfer"),
    ],
)
def test_malformed_frames_are_one_error(
    make: partial[Transfers], monkeypatch: pytest.MonkeyPatch, sent: bytes, reason: str
) -> None:
    monkeypatch.setattr(transfers, "MAX_DELIVERY_BYTES", 5000)
    good = frame(transfer(WHOLE, b"x")) * 20
    find(make(), good + MORE * 5)
    for before in (b"", good):
        with pytest.raises(MalformedError, match=reason) as caught:
            find(make(), before + sent)
        assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(sent=deliveries(), data=st.data())
def test_changed_bytes_are_messages_or_one_error(
    make: partial[Transfers], sent: tuple[list[tuple[bytes, bool]], list[bytes]], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(encoded for encoded, _ in sent[0]))
    for _ in range(data.draw(st.integers(1, 5))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = find(make(), bytes(stream))
    except MalformedError:
        return
    spans = [span for span in zip(found.starts.tolist(), found.ends.tolist(), strict=True) if span[0] >= 0]
    assert all(0 <= start <= end <= len(stream) for start, end in spans)
    assert spans == sorted(spans)
