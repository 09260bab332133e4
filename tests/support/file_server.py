"""A web server on this machine that gives files and lists of folders, and can misbehave."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit


@dataclass
class FileServer:
    """The files of a folder, by HTTP."""

    root: Path
    url: str = ""
    tells_versions: bool = True
    """Whether it sends an ETag."""
    gives_ranges: bool = True
    """Whether it sends a part of a file if asked for one."""
    drops: int = 0
    """So many of the next downloads end in the middle."""
    forbidden: str = ""
    """A part of the paths that it refuses."""
    downloads: Counter[str] = field(default_factory=Counter)
    """How often each file was asked for, by its path."""
    ranges: list[str] = field(default_factory=list)
    """The parts that were asked for."""


class Handler(BaseHTTPRequestHandler):
    """Answers one request; a subclass for each server has its files."""

    served: FileServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        name = unquote(urlsplit(self.path).path)
        path = self.served.root / name.lstrip("/")
        if self.served.forbidden and self.served.forbidden in name:
            self._send(403, b"no", {}, with_body)
        elif path.is_dir():
            page = list_of(path).encode()
            self._send(200, page, {"Content-Type": "text/html"}, with_body)
        elif path.is_file():
            self._send_file(name, path.read_bytes(), with_body)
        else:
            self._send(404, b"none", {}, with_body)

    def _send_file(self, name: str, data: bytes, with_body: bool) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        if self.served.tells_versions:
            headers["ETag"] = f'"{hashlib.sha1(data).hexdigest()}"'
        if with_body:
            self.served.downloads[name] += 1
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        status = 200
        if asked and self.served.gives_ranges:
            self.served.ranges.append(asked[0])
            headers["Content-Range"] = f"bytes {asked[1]}-{asked[2]}/{len(data)}"
            data = data[int(asked[1]) : int(asked[2]) + 1]
            status = 206
        self._send(status, data, headers, with_body, may_drop=True)

    def _send(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str],
        with_body: bool,
        may_drop: bool = False,
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not with_body:
            return
        if may_drop and self.served.drops > 0:
            self.served.drops -= 1
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.connection.close()
            return
        self.wfile.write(data)


def list_of(folder: Path) -> str:
    """Return the page of a folder, with a link to each of its files and folders."""
    links = ['<a href="../">up</a>']
    for path in sorted(folder.iterdir()):
        name = f"{path.name}/" if path.is_dir() else path.name
        links.append(f'<a href="{quote(name)}">{name}</a>')
    return "\n".join(links)


@contextmanager
def serving(root: Path) -> Iterator[FileServer]:
    """Serve a folder until the end of the block."""
    handler = type("HandlerOfFolder", (Handler,), {"served": FileServer(root)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield handler.served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
