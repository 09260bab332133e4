"""A server on this machine that speaks as S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def serving_s3() -> Iterator[str]:
    """Yield the address of a server, which runs until the end of the block."""
    pytest.importorskip("s3fs", reason="the extra cloud is not installed")
    moto = pytest.importorskip("moto.server", reason="the extra dev is not installed")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def empty_bucket(endpoint: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make an empty bucket, and return the file system of a user who may do everything."""
    import fsspec

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    system = fsspec.filesystem("s3")
    if system.exists(name):
        system.rm(name, recursive=True)
    system.mkdir(name)
    return system
