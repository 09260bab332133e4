"""Streams on this machine, made from a video: over TCP, UDP, HTTP and RTSP."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

PACKET = 188  # bytes of a packet of an MPEG transport stream
RATE = 25
Send = Callable[[bytes], object]


def pictures(count: int, size: tuple[int, int] = (64, 128), seed: int = 0) -> list[np.ndarray]:
    """Return smooth random pictures, RGB uint8 ``[H, W, 3]``, that a codec keeps apart."""
    generator = np.random.default_rng(seed)
    frames = []
    for _ in range(count):
        coarse = generator.integers(0, 256, (4, 8, 3), np.uint8)
        rows = np.arange(size[0]) * 4 // size[0]
        columns = np.arange(size[1]) * 8 // size[1]
        frames.append(np.ascontiguousarray(coarse[rows][:, columns]))
    return frames


def write_stream(
    path: Path, frames: Sequence[np.ndarray], codec: str = "mpeg4", *, start: int = 0
) -> Path:
    """Write pictures as a video in the format that the ending of the path names. Its first frame
    has the time ``start`` in seconds.
    """
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.bit_rate = 8_000_000
        stream.codec_context.gop_size = 1  # each frame can be decoded alone
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(frame, "rgb24")
            picture.pts = start * RATE + number
            picture.time_base = Fraction(1, RATE)
            for packet in stream.encode(picture):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """Return the number of a port that nothing uses now."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def tcp_server(*answers: Callable[[Send], object]) -> Iterator[str]:
    """Serve a stream over TCP, and yield its URL.

    Args:
        answers: what is done with each connection, in their order: each gets a function that sends
            bytes. Behind the last, connections are refused.
    """
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                try:
                    answer(connection.sendall)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):  # else what was not read resets the connection
                        pass
                except OSError:  # the reader has gone
                    continue
        server.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()
        thread.join(5)


def whole(path: Path) -> Callable[[Send], object]:
    """Return what sends a file at once."""
    data = path.read_bytes()
    return lambda send: send(data)


def then_silence(path: Path, seconds: float) -> Callable[[Send], object]:
    """Return what sends a file and then nothing, for so many seconds."""
    data = path.read_bytes()

    def answer(send: Send) -> None:
        send(data)
        time.sleep(seconds)

    return answer


@contextmanager
def udp_sender(path: Path, pause: float = 0.005) -> Iterator[str]:
    """Send the packets of a transport stream over UDP again and again, and yield the URL."""
    port = free_port(socket.SOCK_DGRAM)
    data = path.read_bytes()
    stopped = threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not stopped.is_set():
                for start in range(0, len(data), 7 * PACKET):
                    sender.sendto(data[start : start + 7 * PACKET], ("127.0.0.1", port))
                    if stopped.wait(pause):
                        return

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield f"udp://127.0.0.1:{port}"
    finally:
        stopped.set()
        thread.join(5)


@contextmanager
def mjpeg_server(jpegs: Sequence[bytes]) -> Iterator[str]:
    """Serve pictures as web cameras do (multipart over HTTP), and yield the URL with a password."""

    def answer(send: Send) -> None:
        send(b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=cut\r\n\r\n")
        for jpeg in jpegs:
            head = f"--cut\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
            send(head.encode() + jpeg + b"\r\n")

    with tcp_server(answer) as url:
        yield url.replace("tcp://", "http://me:pass-word@") + "/video?token=secret-token"


class RtspServer:
    """A camera with RTSP (RFC 2326): one client, a user and a password (Basic), RTP with a
    transport stream (RFC 2250) inside the connection.

    Attributes:
        allowed: how many requests came with the right password.
        url: of the stream, with user and password.
    """

    def __init__(self, path: Path, pause: float = 0.0) -> None:
        self.allowed = 0
        self._data = path.read_bytes()
        self._pause = pause
        self._server = socket.create_server(("127.0.0.1", 0))
        port = self._server.getsockname()[1]
        self.url = f"rtsp://me:pass-word@127.0.0.1:{port}/live"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> RtspServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                try:
                    self._talk(connection)
                except OSError:
                    continue

    def _talk(self, connection: socket.socket) -> None:
        wanted = "Basic " + base64.b64encode(b"me:pass-word").decode()
        requests = connection.makefile("rb")
        while True:
            lines = []
            while (line := requests.readline().decode().strip()) or not lines:
                if not line:
                    return
                lines.append(line)
            method = lines[0].split()[0]
            headers = dict(line.split(": ", 1) for line in lines[1:])
            status = "200 OK"
            answer = {"CSeq": headers["CSeq"]}
            body = ""
            if method == "OPTIONS":
                answer["Public"] = "OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN"
            elif headers.get("Authorization") != wanted:
                status = "401 Unauthorized"
                answer["WWW-Authenticate"] = 'Basic realm="camera"'
            else:
                self.allowed += 1
                if method == "DESCRIBE":
                    body = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nt=0 0\r\n"
                    body += "m=video 0 RTP/AVP 33\r\na=control:track1\r\n"
                    answer["Content-Type"] = "application/sdp"
                elif method == "SETUP":
                    answer["Transport"] = "RTP/AVP/TCP;unicast;interleaved=0-1"
                    answer["Session"] = "1"
                elif method == "PLAY":
                    answer["Session"] = "1"
            if body:
                answer["Content-Length"] = str(len(body))
            text = f"RTSP/1.0 {status}\r\n"
            text += "".join(f"{name}: {value}\r\n" for name, value in answer.items())
            connection.sendall(f"{text}\r\n{body}".encode())
            if method == "PLAY" and status == "200 OK":
                self._play(connection)
                return

    def _play(self, connection: socket.socket) -> None:
        for number, start in enumerate(range(0, len(self._data), 7 * PACKET)):
            payload = self._data[start : start + 7 * PACKET]
            head = bytes([0x80, 33]) + (number % 65536).to_bytes(2, "big")
            head += (number * 900).to_bytes(4, "big") + (7).to_bytes(4, "big")
            packet = head + payload
            connection.sendall(b"$\0" + len(packet).to_bytes(2, "big") + packet)
            time.sleep(self._pause)
