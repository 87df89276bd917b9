"""Frames in buffers: every message is found once and in order, however it is framed and wherever the stream is cut."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.hub.wire import transfers
from spark_ehbalance.hub.wire.transfers import SLACK, Transfers
from spark_ehbalance.hub.wire.values import MalformedError
from tests.hub.encodings import compound, text

CHANNEL, HANDLE, MAX_FRAME = 1, 3, 1 << 16


@pytest.fixture(scope="module", autouse=True, params=[(transfers._RUN_PAYS, transfers._RUN_PAUSE), (2, 0)])
def _runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Frames of one size are looked at together where that pays, and wherever there are two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfers, "_RUN_PAYS", request.param[0])
        patch.setattr(transfers, "_RUN_PAUSE", request.param[1])
        yield


def frame(body: bytes, channel: int = CHANNEL, extended: bytes = b"", kind: int = 0) -> bytes:
    """`extended` is an extended header, of a multiple of four bytes."""
    return struct.pack(">IBBH", 8 + len(extended + body), 2 + len(extended) // 4, kind, channel) + extended + body


def transfer(fields: list[bytes], payload: bytes, wide: bool = False) -> bytes:
    return b"\x00\x53\x14" + compound(0xC0, len(fields), b"".join(fields), wide) + payload


def uint(value: int, form: int = 4) -> bytes:
    """As it is written in 0, 1 or 4 bytes, if it can be."""
    if form == 0 and value == 0:
        return b"\x43"
    return bytes((0x52, value)) if form <= 1 and value < 256 else b"\x70" + struct.pack(">I", value)


YES, NO, NULL = (b"\x41", b"\x56\x01"), (b"\x42", b"\x56\x00", b"\x40"), b"\x40"


class Way(NamedTuple):
    """How a stretch of frames is written."""

    wide: bool
    form: int
    tag_size: int


WAYS = st.builds(Way, st.booleans(), st.integers(0, 4), st.integers(0, 20))


def own(
    draw: st.DrawFn, way: Way, number: int, part: bytes, *, more: bool, aborted: bool = False, first: bool = True
) -> bytes:
    """A frame of the delivery `number`."""
    tag = text(bytes((number,)) * way.tag_size, 0xA0)
    identity = [uint(number, way.form), tag] if first or draw(st.booleans()) else [NULL, NULL]
    flags = [YES[0], draw(st.sampled_from(YES if more else NO)), NULL, NULL, NULL]
    flags.append(draw(st.sampled_from(YES if aborted else NO)))
    if not aborted and draw(st.booleans()):
        del flags[2 if more else draw(st.integers(1, 5)) :]
    fields = [uint(HANDLE, way.form), *identity, uint(0, way.form), *flags]
    return frame(transfer(fields, part, way.wide), extended=draw(st.sampled_from([b"", b"", b"", bytes(4)])))


def foreign(kind: str, payload: bytes) -> bytes:
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
    way = draw(WAYS)
    for number in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 5)) == 0:
            way = draw(WAYS)
        kind = draw(st.sampled_from(["whole"] * 6 + ["split", "aborted", "foreign"]))
        payload = draw(st.binary(max_size=30)) if draw(st.booleans()) else bytes(draw(st.integers(0, 300)))
        if kind == "whole":
            several = draw(st.sampled_from([1, 1, 2, 3, 5, 100]))
            frames += [(own(draw, way, number, payload, more=False), True)] * several
            messages += [payload] * (several - 1)
        elif kind == "split":
            cuts = sorted(draw(st.lists(st.integers(0, len(payload)), min_size=1, max_size=3)))
            parts = [payload[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
            for at, part in enumerate(parts):
                frames.append((own(draw, way, number, part, more=at < len(parts) - 1, first=at == 0), True))
        elif kind == "aborted":
            frames.append((own(draw, way, number, payload, more=True), True))
            frames.append((own(draw, way, number, b"", more=draw(st.booleans()), aborted=True, first=False), True))
        else:
            other = draw(st.sampled_from(["handle", "channel", "empty", "flow", "sasl"]))
            frames.append((foreign(other, payload), False))
        if kind in ("whole", "split"):
            messages.append(payload)
    return frames, messages


@settings(deadline=None)
@given(deliveries(), st.data())
def test_every_message_once_and_in_order(
    sent: tuple[list[tuple[bytes, bool]], list[bytes]], data: st.DataObject
) -> None:
    frames, messages = sent
    others = [(at, each) for at, (each, is_own) in enumerate(frames) if not is_own]
    stream = b"".join(each for each, _ in frames)
    stale = data.draw(st.sampled_from([b"\x00", b"\xff"])) * SLACK + stream[:SLACK] + bytes(SLACK)
    found, counted = Transfers(CHANNEL, HANDLE, MAX_FRAME), 0
    got: list[bytes] = []
    met: list[bytes] = []

    def meet(channel: int, each: bytes) -> None:
        nonlocal counted
        counted += found.counted()[0]
        assert counted + len(met) == others[len(met)][0]  # whoever gets it can know of all that came before it
        met.append(each)

    end = pos = 0
    while end < len(stream):
        end = min(len(stream), end + data.draw(st.integers(1, 400)))
        pos = found.find(bytearray(stream[:end] + stale), pos, end, meet)
        for start, stop in zip(found.starts, found.ends, strict=True):
            got.append(stream[start:stop] if start >= 0 else found.joined[-1 - start])
        found.clear()
    assert pos == len(stream)
    assert got == messages
    assert met == [each for _, each in others]
    assert counted + found.counted()[0] == len(frames) - len(met)


def find(stream: bytes) -> Transfers:
    found = Transfers(CHANNEL, HANDLE, MAX_FRAME)
    found.find(bytearray(stream + bytes(SLACK)), 0, len(stream), lambda channel, each: None)
    return found


WHOLE = [uint(HANDLE), uint(0), text(b"t", 0xA0), uint(0), YES[0], NO[0], NULL, NULL, NULL, NO[0]]


def test_an_aborted_delivery_counts_and_brings_nothing() -> None:
    aborted = [*WHOLE[:9], YES[0]]
    found = find(frame(transfer(aborted, b"x")) + frame(transfer(WHOLE, b"y")) + frame(transfer(aborted, b"z")))
    assert len(found.starts) == 1
    assert found.counted() == (3, 3)
    assert found.counted() == (0, 0)


@pytest.mark.parametrize("size", [0, 7, MAX_FRAME + 1, 2**32 - 1])
@pytest.mark.parametrize("known", [False, True])
def test_a_frame_of_a_size_that_cannot_be_is_one_clear_error(size: int, known: bool) -> None:
    good = frame(transfer(WHOLE, b"x")) * 20 if known else b""
    with pytest.raises(MalformedError, match=f"a frame of {size} bytes") as caught:
        find(good + struct.pack(">I", size) + frame(transfer(WHOLE, b"x"))[4:])
    assert "\n" not in str(caught.value)


def test_a_delivery_without_end_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "MAX_DELIVERY_BYTES", 5000)
    more = frame(transfer([*WHOLE[:5], YES[0]], bytes(1000)))
    find(more * 5)
    with pytest.raises(MalformedError, match="a delivery of more than 5000 bytes"):
        find(more * 6)


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
def test_a_transfer_that_is_none_is_one_clear_error(body: bytes) -> None:
    with pytest.raises(MalformedError, match="no sound AMQP"):
        find(frame(body))


@settings(deadline=None)
@given(deliveries(), st.data())
def test_changed_bytes_end_in_messages_or_one_clear_error(
    sent: tuple[list[tuple[bytes, bool]], list[bytes]], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(each for each, _ in sent[0]))
    for _ in range(data.draw(st.integers(1, 5))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = find(bytes(stream))
    except MalformedError:
        return
    spans = [span for span in zip(found.starts, found.ends, strict=True) if span[0] >= 0]
    assert all(0 <= start <= end <= len(stream) for start, end in spans)
    assert spans == sorted(spans)


def numbered(number: int, payload: bytes, *, more: bool = False) -> bytes:
    """As the service writes nearly all."""
    tag = text(struct.pack(">I", number), 0xA0)
    return frame(transfer([uint(HANDLE), uint(number), tag, uint(0), YES[0], YES[0] if more else NO[0]], payload))


@pytest.mark.parametrize(
    ("other", "messages"),
    [
        (numbered(7, b"longer than the others"), [b"longer than the others"]),
        (numbered(7, b"half", more=True) + numbered(7, b"half"), [b"halfhalf"]),
        (foreign("channel", b"x"), []),
    ],
    ids=["another size", "not whole", "foreign"],
)
@pytest.mark.parametrize("at", [1, 2, 3, 100, 599, 600])
def test_a_run_of_frames_ends_before_the_first_that_is_different(at: int, other: bytes, messages: list[bytes]) -> None:
    payloads = [b"%04d" % number for number in range(600)]  # numbers up to 255 are written in one byte
    frames = [numbered(number, each) for number, each in enumerate(payloads)]
    stream = b"".join([*frames[:at], other, *frames[at:]])
    found = find(stream)
    spans = zip(found.starts, found.ends, strict=True)
    got = [stream[start:end] if start >= 0 else found.joined[-1 - start] for start, end in spans]
    assert got == [*payloads[:at], *messages, *payloads[at:]]
