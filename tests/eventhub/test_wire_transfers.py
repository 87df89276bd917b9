"""Frames in buffers: every message is found once and in order, however it is framed and wherever the stream is cut."""

from __future__ import annotations

import struct
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.eventhub.wire import transfers
from spark_ehbalance.eventhub.wire.transfers import SLACK, RawMessages, Transfers
from spark_ehbalance.eventhub.wire.values import MalformedError
from tests.eventhub.encodings import compound, text

CHANNEL, HANDLE, MAX_FRAME = 1, 3, 1 << 16


#: Finders that compare frames of one size at once where that pays, and wherever there are two.
FINDERS = {
    "where it pays": partial(Transfers, CHANNEL, HANDLE, MAX_FRAME),
    "everywhere": partial(Transfers, CHANNEL, HANDLE, MAX_FRAME, run_pays=2, run_pause=0),
}


@pytest.fixture(scope="module", params=FINDERS)
def make(request: pytest.FixtureRequest) -> partial[Transfers]:
    """Makes a finder."""
    return FINDERS[request.param]


def frame(body: bytes, channel: int = CHANNEL, extended: bytes = b"", kind: int = 0) -> bytes:
    """`extended` is an extended header, of a multiple of four bytes."""
    return struct.pack(">IBBH", 8 + len(extended + body), 2 + len(extended) // 4, kind, channel) + extended + body


def transfer(fields: list[bytes], payload: bytes, wide: bool = False) -> bytes:
    return b"\x00\x53\x14" + compound(0xC0, len(fields), b"".join(fields), wide) + payload


def uint(value: int, form: int = 4) -> bytes:
    """Encoded in 0, 1 or 4 bytes if `form` allows it."""
    if form == 0 and value == 0:
        return b"\x43"
    return bytes((0x52, value)) if form <= 1 and value < 256 else b"\x70" + struct.pack(">I", value)


YES, NO, NULL = (b"\x41", b"\x56\x01"), (b"\x42", b"\x56\x00", b"\x40"), b"\x40"


class Encoding(NamedTuple):
    """How several frames in a row are encoded."""

    wide: bool
    form: int
    tag_size: int


ENCODINGS = st.builds(Encoding, st.booleans(), st.integers(0, 4), st.integers(0, 20))


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
    """A frame of the delivery `number`."""
    tag = text(bytes((number,)) * encoding.tag_size, 0xA0)
    identity = [uint(number, encoding.form), tag] if first or draw(st.booleans()) else [NULL, NULL]
    flags = [YES[0], draw(st.sampled_from(YES if more else NO)), NULL, NULL, NULL]
    flags.append(draw(st.sampled_from(YES if aborted else NO)))
    if not aborted and draw(st.booleans()):
        del flags[2 if more else draw(st.integers(1, 5)) :]
    fields = [uint(HANDLE, encoding.form), *identity, uint(0, encoding.form), *flags]
    return frame(transfer(fields, part, encoding.wide), extended=draw(st.sampled_from([b"", b"", b"", bytes(4)])))


def other_frame(kind: str, payload: bytes) -> bytes:
    fields = [uint(HANDLE + (kind == "handle")), uint(0), text(b"t", 0xA0)]
    if kind == "empty":
        return frame(b"", 0)
    if kind == "flow":
        return frame(b"\x00\x53\x13" + compound(0xC0, 1, NULL))
    return frame(transfer(fields, payload), CHANNEL + (kind == "channel"), kind=int(kind == "sasl"))


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[tuple[bytes, bool]], list[bytes]]:
    """Frames, each with whether it is for the link, and the messages that they bring to it."""
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
    others = [(at, each) for at, (each, is_own) in enumerate(frames) if not is_own]
    stream = b"".join(each for each, _ in frames)
    stale = data.draw(st.sampled_from([b"\x00", b"\xff"])) * SLACK + stream[:SLACK] + bytes(SLACK)
    found, counted = make(), 0
    got: list[bytes] = []
    met: list[bytes] = []

    def meet(channel: int, each: bytes) -> None:
        nonlocal counted
        counted += found.counted()[0]
        assert counted + len(met) == others[len(met)][0]  # all frames before it were counted
        met.append(each)

    end = pos = 0
    while end < len(stream):
        end = min(len(stream), end + data.draw(st.integers(1, 400)))
        data_so_far = bytearray(stream[:end] + stale)
        pos = found.find(data_so_far, pos, end, meet)
        got += found.messages(data_so_far, 0, len(found))
        found.clear()
    assert pos == len(stream)
    assert got == messages
    assert met == [each for _, each in others]
    assert counted + found.counted()[0] == len(frames) - len(met)


def find(found: Transfers, stream: bytes) -> RawMessages:
    data = bytearray(stream + bytes(SLACK))
    found.find(data, 0, len(stream), lambda channel, each: None)
    return found.messages(data, 0, len(found))


WHOLE = [uint(HANDLE), uint(0), text(b"t", 0xA0), uint(0), YES[0], NO[0], NULL, NULL, NULL, NO[0]]


@pytest.mark.parametrize("size", [0, 7, MAX_FRAME + 1, 2**32 - 1])
@pytest.mark.parametrize("known", [False, True])
def test_a_frame_of_an_impossible_size_is_one_clear_error(make: partial[Transfers], size: int, known: bool) -> None:
    good = frame(transfer(WHOLE, b"x")) * 20 if known else b""
    with pytest.raises(MalformedError, match=f"a frame of {size} bytes") as caught:
        find(make(), good + struct.pack(">I", size) + frame(transfer(WHOLE, b"x"))[4:])
    assert "\n" not in str(caught.value)


def test_too_large_a_delivery_is_one_clear_error(make: partial[Transfers], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "MAX_DELIVERY_BYTES", 5000)
    more = frame(transfer([*WHOLE[:5], YES[0]], bytes(1000)))
    find(make(), more * 5)
    with pytest.raises(MalformedError, match="a delivery of more than 5000 bytes"):
        find(make(), more * 6)


@pytest.mark.parametrize(
    "body",
    [
        b"\x00\x53\x14\xd0" + struct.pack(">II", 4, 2**32 - 1),
        b"\x00\x53\x14\xd0" + struct.pack(">II", 4, 1) + b"\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40",
        b"\x00\x53\x14\x41",
        b"\x00\x53\x14",
        b"\x00\x53\x14\xc0\x01\x01",
    ],
    ids=["fields", "array", "no list", "nothing", "cut off"],
)
def test_an_invalid_transfer_is_one_clear_error(make: partial[Transfers], body: bytes) -> None:
    with pytest.raises(MalformedError, match="no sound AMQP"):
        find(make(), frame(body))


@settings(deadline=None)
@given(sent=deliveries(), data=st.data())
def test_changed_bytes_are_messages_or_one_clear_error(
    make: partial[Transfers], sent: tuple[list[tuple[bytes, bool]], list[bytes]], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(each for each, _ in sent[0]))
    for _ in range(data.draw(st.integers(1, 5))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = find(make(), bytes(stream))
    except MalformedError:
        return
    spans = [span for span in zip(found.starts.tolist(), found.ends.tolist(), strict=True) if span[0] >= 0]
    assert all(0 <= start <= end <= len(stream) for start, end in spans)
    assert spans == sorted(spans)


def numbered(number: int, payload: bytes, *, more: bool = False) -> bytes:
    """A frame like nearly all of the service."""
    tag = text(struct.pack(">I", number), 0xA0)
    return frame(transfer([uint(HANDLE), uint(number), tag, uint(0), YES[0], YES[0] if more else NO[0]], payload))


@pytest.mark.parametrize(
    ("other", "messages"),
    [
        (numbered(7, b"longer than the others"), [b"longer than the others"]),
        (numbered(7, b"half", more=True) + numbered(7, b"half"), [b"halfhalf"]),
        (other_frame("channel", b"x"), []),
    ],
    ids=["another size", "not whole", "another channel"],
)
@pytest.mark.parametrize("at", [1, 2, 3, 100, 599, 600])
def test_a_run_of_frames_ends_before_the_first_different_one(
    make: partial[Transfers], at: int, other: bytes, messages: list[bytes]
) -> None:
    payloads = [b"%04d" % number for number in range(600)]  # numbers up to 255 are written in one byte
    frames = [numbered(number, each) for number, each in enumerate(payloads)]
    found = find(make(), b"".join([*frames[:at], other, *frames[at:]]))
    assert list(found) == [*payloads[:at], *messages, *payloads[at:]]
