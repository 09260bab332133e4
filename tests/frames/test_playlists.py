"""A file that calls itself a video and is a list of addresses opens no connection."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import av
import pytest

from segunc.core.errors import InputError
from segunc.frames.sources import open_source

LISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{scheme}://127.0.0.1:{port}/a.ts\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile {scheme}://127.0.0.1:{port}/a.ts\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT5S" '
    'profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period><AdaptationSet mimeType="video/mp4"><Representation '
    'id="1" bandwidth="1"><BaseURL>{scheme}://127.0.0.1:{port}/a.mp4</BaseURL></Representation></AdaptationSet></Period></MPD>',
}


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A listener that lets callers into its queue, where they can be counted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def callers(server: socket.socket) -> int:
    number = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            number += 1
    return number


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("scheme", ["http", "tcp"])
def test_no_connection_is_opened(server: socket.socket, tmp_path: Path, kind: str, scheme: str) -> None:
    path = tmp_path / "drive.mp4"
    path.write_text(LISTS[kind].format(scheme=scheme, port=server.getsockname()[1]), encoding="utf-8")
    with contextlib.suppress(InputError):
        assert all(frame.image is None for frame in open_source(path))
    assert callers(server) == 0


def test_a_caller_would_be_counted(server: socket.socket) -> None:
    with contextlib.suppress(av.error.FFmpegError):
        av.open(f"http://127.0.0.1:{server.getsockname()[1]}/a.mp4", timeout=0.2)
    assert callers(server) > 0
