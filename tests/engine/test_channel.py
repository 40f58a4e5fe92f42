"""Frames survive any cut, and what is no frame ends the connection with its name."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from pelton.engine.channel import (
    MAX_FRAME_BYTES,
    ChannelClosedError,
    ChannelError,
    EngineChannel,
    FrameReader,
    frame,
)
from pelton.engine.messages import (
    AbortRequest,
    AddRequest,
    EndTokens,
    EngineStats,
    Failed,
    Loading,
    Resume,
    Start,
    StepReport,
    Stop,
    ToClient,
    ToEngine,
)
from pelton.engine.request import Progress
from pelton.sampling_params import SamplingParams

SAMPLING = SamplingParams(n=2, logit_bias={5: -1.5}, stop=("a", "b"), stop_token_ids=(3,), seed=-7, logprobs=2)
MESSAGES: list[ToEngine] = [
    Start({"model": "x", "max_model_len": 512, "strict": True, "level": None, "disabled_kernels": ()}),
    EndTokens([1, 2]),
    AddRequest("r", [1, 2, 3], SAMPLING, (1 << 64) - 1, -5, "salt", [[1], []]),
    AbortRequest("r", 1),
    AbortRequest("r"),
    Resume(),
    Stop(),
]


@pytest.fixture
def pair() -> Iterator[tuple[EngineChannel, socket.socket]]:
    """The engine's end, and the raw other one."""
    ours, theirs = socket.socketpair()
    channel = EngineChannel(ours, send_timeout_s=0.05)
    with theirs:
        yield channel, theirs
    channel.close()


def test_messages_arrive_as_they_were_sent() -> None:
    reader: FrameReader[ToEngine] = FrameReader(ToEngine)
    received = reader.feed(b"".join(map(frame, MESSAGES)))
    assert received[1:] == MESSAGES[1:]
    assert isinstance(received[0], Start)
    assert received[0].settings["disabled_kernels"] == []  # lists and tuples are one thing on the way


def test_frames_may_be_cut_anywhere(case_count: Callable[[int, int], int]) -> None:
    data = b"".join(map(frame, MESSAGES[1:]))
    for seed in range(case_count(200, 5000)):
        draw = random.Random(seed)
        cuts = sorted(draw.sample(range(len(data)), draw.randrange(len(data))))
        reader: FrameReader[ToEngine] = FrameReader(ToEngine)
        received = []
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            received += reader.feed(data[start:end])
        assert received == MESSAGES[1:]
        assert isinstance(reader.end(), ChannelClosedError)


def test_a_frame_that_announces_too_much_is_refused_before_it_is_read() -> None:
    with pytest.raises(ChannelError, match=f"announces `{MAX_FRAME_BYTES + 1}` bytes"):
        FrameReader(ToEngine).feed(struct.pack("<I", MAX_FRAME_BYTES + 1))


def test_a_message_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.engine.channel.MAX_FRAME_BYTES", 100)
    with pytest.raises(ChannelError, match="a frame holds `100`"):
        frame(Loading("x" * 200))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode({"type": "Unknown"}),
        msgspec.msgpack.encode({"type": "AbortRequest"}),
        msgspec.msgpack.encode({"type": "AbortRequest", "request_id": 5}),
        msgspec.msgpack.encode(Stop()) + b"\x00",
        # Sampling that can't be is refused by SamplingParams itself.
        frame(MESSAGES[2])[4:].replace(b"temperature\xcb\x3f\xf0", b"temperature\xcb\xbf\xf0"),
    ],
)
def test_a_frame_without_a_message_is_named(content: bytes) -> None:
    with pytest.raises(ChannelError, match="a frame holds no message"):
        FrameReader(ToEngine).feed(struct.pack("<I", len(content)) + content)


def test_random_bytes_never_end_in_anything_else(case_count: Callable[[int, int], int]) -> None:
    for seed in range(case_count(2_000, 50_000)):
        draw = random.Random(seed)
        data = bytearray(b"".join(map(frame, MESSAGES)))
        for _ in range(draw.randrange(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        reader: FrameReader[ToEngine] = FrameReader(ToEngine)
        try:
            reader.feed(bytes(data[: draw.randrange(len(data))]))
        except ChannelError:
            continue
        assert isinstance(reader.end(), ChannelError)


def test_a_closed_peer_is_told_from_one_that_broke_off(pair: tuple[EngineChannel, socket.socket]) -> None:
    channel, peer = pair
    peer.sendall(frame(Stop()) + frame(Stop())[:-1])
    assert channel.receive(wait=True) == [Stop()]
    peer.close()
    with pytest.raises(ChannelError, match="ended within a frame") as caught:
        channel.receive(wait=True)
    assert not isinstance(caught.value, ChannelClosedError)


@pytest.mark.parametrize("leaves_unread", [False, True])
def test_the_end_of_the_client_is_the_end(pair: tuple[EngineChannel, socket.socket], leaves_unread: bool) -> None:
    channel, peer = pair
    if leaves_unread:
        channel.send(Loading("reading"))
    peer.close()
    with pytest.raises(ChannelClosedError):
        channel.receive(wait=True)
    with pytest.raises(ChannelClosedError):
        channel.send(Loading("reading"))


def test_without_waiting_nothing_is_an_answer(pair: tuple[EngineChannel, socket.socket]) -> None:
    assert pair[0].receive(wait=False) == []


def test_waiting_ends_with_the_first_bytes(pair: tuple[EngineChannel, socket.socket]) -> None:
    channel, peer = pair
    received: list[ToEngine] = []
    thread = threading.Thread(target=lambda: received.extend(channel.receive(wait=True)))
    thread.start()
    peer.sendall(frame(EndTokens([7])))
    thread.join()
    assert received == [EndTokens([7])]


def test_a_client_that_does_not_read_stops_the_engine(pair: tuple[EngineChannel, socket.socket]) -> None:
    report = StepReport([Progress("r", 0, list(range(100_000)))], EngineStats())

    def send_many() -> None:
        for _ in range(100):
            pair[0].send(report)

    with pytest.raises(ChannelError, match="has read nothing"):
        send_many()


def test_large_messages_pass_whole(pair: tuple[EngineChannel, socket.socket]) -> None:
    channel, peer = pair
    prompt = list(range(500_000))
    sender = threading.Thread(target=lambda: peer.sendall(frame(AddRequest("r", prompt, SAMPLING, 1))))
    sender.start()
    received: list[ToEngine] = []
    while not received:
        received = channel.receive(wait=True)
    sender.join()
    assert received == [AddRequest("r", prompt, SAMPLING, 1)]


def test_both_directions_have_their_own_messages() -> None:
    with pytest.raises(ChannelError):
        FrameReader(ToClient).feed(frame(Stop()))
    reader: FrameReader[ToClient] = FrameReader(ToClient)
    assert reader.feed(frame(Failed("ModelError", "no"))) == [Failed("ModelError", "no")]
