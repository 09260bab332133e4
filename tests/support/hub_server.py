"""A server on this machine that speaks the protocol of the Hugging Face Hub, as far as its client
needs it to make repositories, commit, list and download. It holds everything in memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

OWNER = "owner"
TOKEN = "hf_writer"
"""The token of the one user, who may read and write everything."""
READER = "hf_reader"
"""A token that may read public repositories only."""
LFS_ENDINGS = (".safetensors", ".bin", ".pt", ".npz")
Files = dict[str, bytes]


def git_id(data: bytes) -> str:
    """Return the hash that git gives to the content of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_lfs(name: str) -> bool:
    return name.endswith(LFS_ENDINGS)


@dataclass
class Repo:
    """A repository: its files at each commit, and what its branches and tags point to."""

    private: bool = False
    gated: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, files: Files, message: str = "", ref: str = "main") -> str:
        """Add a commit with exactly these files, and return its hash."""
        text = json.dumps([message, len(self.commits), sorted(files)])
        digest = hashlib.sha1(text.encode()).hexdigest()
        self.commits[digest] = dict(files)
        self.refs[ref] = digest
        self.messages.append(message)
        return digest

    def find(self, revision: str) -> str | None:
        """Return the commit of a branch, a tag or a hash."""
        if revision in self.commits:
            return revision
        return self.refs.get(revision)

    def files(self, revision: str = "main") -> Files:
        return self.commits[self.refs.get(revision, revision)]


@dataclass
class Hub:
    """What the server holds, and what it was asked."""

    url: str = ""
    storage: str = ""
    """Where large files are: the same server under another name, as the Hub has another host."""
    repos: dict[str, Repo] = field(default_factory=dict)
    objects: Files = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Paths that this server does not know: the client of the Hub needs more than it speaks."""
    broken: int = 0
    """Status of every answer; 0 answers as the Hub does."""

    def repo(self, name: str, files: Mapping[str, bytes], **more: Any) -> Repo:
        """Add a repository with one commit."""
        repo = self.repos[name] = Repo(**more)
        repo.commit({".gitattributes": b"", **files})
        return repo

    def environment(self, cache: Path) -> dict[str, str]:
        """Return the environment of a process whose client of the Hub knows this one alone."""
        return {
            **os.environ,
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache.with_name("hf-home")),
            "HF_HUB_CACHE": str(cache),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_TOKEN": TOKEN,
        }

    def downloaded(self) -> set[str]:
        """Return the names of the files whose content was asked for."""
        names = set()
        for line in self.requests:
            match = re.match(r"GET /[^/]+/[^/]+/resolve/[^/]+/(.+)", line)
            if match:
                names.add(unquote(match[1]))
        return names


class _Refusal(Exception):
    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status = status
        self.code = code
        self.message = message


@dataclass
class Answer:
    """Status, body and headers of an answer."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(content: Any, status: int = 200) -> Answer:
    return Answer(json.dumps(content).encode(), status, {"Content-Type": "application/json"})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        body = self._read_body()
        path = urlsplit(self.path)
        self.hub.requests.append(f"{self.command} {path.path}")
        try:
            if self.hub.broken:
                raise _Refusal(self.hub.broken)
            answer = self._route(unquote(path.path), parse_qs(path.query), body)
        except _Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            answer = as_json({"error": refusal.message}, refusal.status)
            answer.headers = {**answer.headers, **{k: v for k, v in headers.items() if v}}
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    @property
    def token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _route(self, path: str, query: dict[str, list[str]], body: bytes) -> Answer:
        if self.token and self.token not in (TOKEN, READER):
            raise _Refusal(401, message="Invalid credentials in Authorization header")
        routes: dict[str, Callable[..., Answer]] = {
            r"/api/repos/create": self._create,
            r"/api/validate-yaml": self._validate,
            r"/lfs/([0-9a-f]{64})": self._object,
            r"/lfs-verify": self._verify,
            r"/([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch": self._batch,
            r"/api/models/([\w.-]+/[\w.-]+)/preupload/(.+)": self._preupload,
            r"/api/models/([\w.-]+/[\w.-]+)/commit/(.+)": self._commit,
            r"/api/models/([\w.-]+/[\w.-]+)/branch/(.+)": self._branch,
            r"/api/models/([\w.-]+/[\w.-]+)/tree/([^/]+)": self._tree,
            r"/api/models/([\w.-]+/[\w.-]+)/revision/(.+)": self._info,
            r"/api/models/([\w.-]+/[\w.-]+)": self._info,
            r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)": self._resolve,
        }
        for pattern, handler in routes.items():
            match = re.fullmatch(pattern, path)
            if match:
                return handler(*match.groups(), query=query, body=body)
        if path != "/api/agent-harnesses":  # the client does without it
            self.hub.unknown.append(path)
        raise _Refusal(404, message=f"no route for {path}")

    def _may_write(self) -> None:
        if self.token != TOKEN:
            raise _Refusal(403 if self.token else 401, message="You may not write")

    def _repo(self, name: str) -> Repo:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self.token != TOKEN):
            raise _Refusal(404 if self.token else 401, "RepoNotFound", "Repository not found")
        return repo

    def _at(self, name: str, revision: str) -> tuple[Repo, str]:
        repo = self._repo(name)
        commit = repo.find(revision)
        if commit is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo, commit

    def _create(self, *, query: Any, body: bytes) -> Answer:
        self._may_write()
        asked = json.loads(body)
        name = f"{asked.get('organization') or OWNER}/{asked['name']}"
        url = {"url": f"{self.hub.url}/{name}"}
        if name in self.hub.repos:
            return as_json({**url, "error": "You already created this model repo"}, 409)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.repo(name, {}, private=private)
        return as_json(url)

    def _validate(self, *, query: Any, body: bytes) -> Answer:
        content = json.loads(body)["content"]
        header = yaml.safe_load(content.split("---")[1])
        if not isinstance(header, dict):
            return as_json({"errors": [{"message": "no header"}], "warnings": []}, 400)
        return as_json({"errors": [], "warnings": []})

    def _preupload(self, name: str, revision: str, *, query: Any, body: bytes) -> Answer:
        self._may_write()
        repo, commit = self._at(name, revision)
        there = repo.commits[commit]
        files = []
        for file in json.loads(body)["files"]:
            path = file["path"]
            entry = {"path": path, "shouldIgnore": False}
            entry["uploadMode"] = "lfs" if is_lfs(path) else "regular"
            if path in there:
                data = there[path]
                entry["oid"] = hashlib.sha256(data).hexdigest() if is_lfs(path) else git_id(data)
            files.append(entry)
        return as_json({"files": files})

    def _batch(self, name: str, *, query: Any, body: bytes) -> Answer:
        self._may_write()
        objects = []
        for asked in json.loads(body)["objects"]:
            if asked["oid"] not in self.hub.objects:
                asked["actions"] = {
                    "upload": {"href": f"{self.hub.url}/lfs/{asked['oid']}"},
                    "verify": {"href": f"{self.hub.url}/lfs-verify"},
                }
            objects.append(asked)
        return as_json({"transfer": "basic", "objects": objects})

    def _object(self, oid: str, *, query: Any, body: bytes) -> Answer:
        """Take an object, or hand it out as the storage behind the Hub does."""
        if self.command == "PUT":
            self.hub.objects[oid] = body
            return Answer()
        return Answer(self.hub.objects[oid])

    def _verify(self, *, query: Any, body: bytes) -> Answer:
        asked = json.loads(body)
        data = self.hub.objects.get(asked["oid"], b"")
        if hashlib.sha256(data).hexdigest() != asked["oid"] or len(data) != asked["size"]:
            raise _Refusal(422, message="the object is damaged")
        return as_json({})

    def _commit(self, name: str, revision: str, *, query: Any, body: bytes) -> Answer:
        self._may_write()
        repo, parent = self._at(name, revision)
        files = dict(repo.commits[parent])
        message = ""
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                message = value["summary"]
            elif item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif item["key"] == "deletedFile":
                del files[value["path"]]
        ref = "refs/pr/1" if "create_pr" in query else revision
        digest = repo.commit(files, message, ref)
        answer = {"commitUrl": f"{self.hub.url}/{name}/commit/{digest}", "commitOid": digest}
        if "create_pr" in query:
            answer["pullRequestUrl"] = f"{self.hub.url}/{name}/discussions/1"
        return as_json({"success": True, **answer})

    def _branch(self, name: str, branch: str, *, query: Any, body: bytes) -> Answer:
        self._may_write()
        repo = self._repo(name)
        if branch in repo.refs:
            raise _Refusal(409, message="Reference already exists")
        repo.refs[branch] = repo.refs["main"]
        return as_json({})

    def _tree(self, name: str, revision: str, *, query: Any, body: bytes) -> Answer:
        repo, commit = self._at(name, revision)
        return as_json([_entry(*file) for file in repo.commits[commit].items()])

    def _info(
        self, name: str, revision: str = "main", *, query: dict[str, list[str]], body: bytes
    ) -> Answer:
        repo, commit = self._at(name, revision)
        siblings = []
        for path, data in repo.commits[commit].items():
            sibling: dict[str, Any] = {"rfilename": path}
            if "blobs" in query:
                entry = _entry(path, data)
                sibling |= {"size": entry["size"], "blobId": entry["oid"]}
                if "lfs" in entry:
                    sibling["lfs"] = {"sha256": entry["lfs"]["oid"], **entry["lfs"]}
            siblings.append(sibling)
        return as_json(
            {
                "_id": "1",
                "id": name,
                "modelId": name,
                "sha": commit,
                "private": repo.private,
                "gated": "manual" if repo.gated else False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": siblings,
                "lastModified": "2026-11-28T12:00:00.000Z",
                "createdAt": "2026-11-28T12:00:00.000Z",
            }
        )

    def _resolve(self, name: str, revision: str, path: str, *, query: Any, body: bytes) -> Answer:
        repo, commit = self._at(name, revision)
        if repo.gated and self.token != TOKEN:
            message = f"Access to model {name} is restricted."
            raise _Refusal(403 if self.token else 401, "GatedRepo", message)
        if path not in repo.commits[commit]:
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        data = repo.commits[commit][path]
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not is_lfs(path):
            headers["ETag"] = f'"{git_id(data)}"'
            return Answer(data, headers={**headers, "Content-Length": str(len(data))})
        digest = hashlib.sha256(data).hexdigest()
        self.hub.objects.setdefault(digest, data)
        headers |= {
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(data)),
            "Location": f"{self.hub.storage}/lfs/{digest}",
        }
        return Answer(status=302, headers=headers)


def _entry(path: str, data: bytes) -> dict[str, Any]:
    """Return a file as a listing has it."""
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_id(data)}
    if is_lfs(path):
        digest = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 134}
    return entry


@contextmanager
def serve() -> Iterator[Hub]:
    """Run a hub on a free port of this machine until the end of the block."""
    hub = Hub()
    handler = type("HandlerOfHub", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    port = server.server_address[1]
    hub.url = f"http://127.0.0.1:{port}"
    hub.storage = f"http://localhost:{port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def point_client_at(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client of the Hub in this process know this hub alone, with an empty cache in a
    folder and the token of the owner.
    """
    from huggingface_hub import constants

    resolve = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", resolve)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(folder / "none"), raising=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
