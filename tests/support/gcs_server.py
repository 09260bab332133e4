"""A server on this machine that speaks as Google Cloud Storage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@contextmanager
def serving_gcs() -> Iterator[str]:
    """Yield the address of a server, which runs until the end of the block."""
    pytest.importorskip("gcsfs", reason="the extra gcs is not installed")
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server", reason="the extra dev is not installed"
    )
    storage = emulator.Storage(use_memory_fs=True)
    handler = partial(emulator.RequestHandler, storage)
    # The emulator's own server answers one request after the other.
    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as address:
        yield address


class _Refusal(BaseHTTPRequestHandler):
    """Answers every request as Google answers an account without rights."""

    def do_GET(self) -> None:
        text = b'{"error": {"code": 401, "message": "Anonymous caller has no access."}}'
        self.send_response(401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def refusing_gcs() -> Iterator[str]:
    """Yield the address of a server that refuses everything, until the end of the block."""
    pytest.importorskip("gcsfs", reason="the extra gcs is not installed")
    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), _Refusal)) as address:
        yield address


@contextmanager
def _serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Run a server until the end of the block, and yield its address."""
    # A client that has its answer may close the connection early.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_gcs(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the file system of a user of a server, who has no account."""
    import fsspec

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
    # Google's library then looks for no account: neither of this user nor of a machine of Google.
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    fsspec.get_filesystem_class("gs").clear_instance_cache()
    return fsspec.filesystem("gs")


def empty_gcs_bucket(endpoint: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make an empty bucket, and return the file system of a user who may do everything."""
    system = use_gcs(endpoint, monkeypatch)
    if system.exists(name):
        system.rm(name, recursive=True)
    system.mkdir(name)
    return system
