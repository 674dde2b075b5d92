"""A hub on loopback: a real HTTP server with datasets in memory, whose faults are switched on one by one.

It answers what huggingface_hub 2.4 and data/hub.py ask: the API of a dataset or a model, and HEAD and GET of its files
with ETag, X-Repo-Commit, Content-Length and Range. It counts what it was asked and the bytes of bodies that it sent.
"""

import hashlib
import json
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Faults:
    """What is wrong with the hub; all of it can be changed while it runs."""

    gated: bool = False  # 401 with X-Error-Code: GatedRepo
    forbidden: bool = False  # a bare 403
    busy: int = 0  # so many answers are 429; -1: all of them
    retry_after: str | None = "1"
    rate_limit: str | None = None  # the hub's own header, of the draft draft-ietf-httpapi-ratelimit-headers
    broken: int = 0  # so many answers are 503; -1: all of them
    broken_as: int = 503
    only_files: bool = False  # the fault of busy and broken is in files alone, not in the API
    silent: bool = False  # accepts, reads, and never answers
    stop_after: int | None = None  # bytes of a body after which it falls silent
    cut_after: int | None = None  # bytes of a body after which the connection is closed
    in_all: int | None = None  # bytes of bodies after which no answer brings any
    cut_in_turn: tuple[int, ...] = ()  # the same, another number for each answer, over and over
    no_ranges: bool = False  # always the whole file, 200
    seconds_per_chunk: float = 0.0  # of 64 kB
    spoiled: bool = False  # right length, wrong bytes
    stated_size: int | None = None  # what the listing says of every file but the card
    no_sizes: bool = False  # the listing says none
    redirects: bool = False  # files come from another host, as from the hub's store of large files
    web_page: bool = False  # answers 200 with HTML, as a log-in page of a network does


@dataclass
class Hub:
    """The stand-in: files of each dataset, or model, by name, served at `commit`, its newest."""

    datasets: dict[str, dict[str, bytes]]
    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commit: str = COMMIT
    faults: Faults = field(default_factory=Faults)
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Range
    authorized: list[str] = field(default_factory=list)  # paths that were asked for with a token
    n_bytes: int = 0  # of files' bodies, sent

    def __enter__(self) -> "Hub":
        hub = self

        class Handler(_Handler):
            here = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopping.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def paths(self, method: str = "GET") -> list[str]:
        return [path for asked, path, _ in self.asked if asked == method]

    def forget(self) -> None:
        self.asked.clear()
        self.authorized.clear()
        self.n_bytes = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    here: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.here, unquote(urlsplit(self.path).path)
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        hub.authorized += [path] if "Authorization" in self.headers else []
        kind = "" if self.here.models and "/datasets/" not in path else "datasets/"
        of_file = re.fullmatch(rf"/{kind}(.+?)/(?:resolve|stored)/([^/]+)/(.+)", path)
        of_api = re.fullmatch(rf"/api/{kind or 'models/'}(.+?)(?:/revision/(.+))?", path)
        if hub.faults.silent:
            hub.stopping.wait(120)
            self.close_connection = True
            return
        if hub.faults.web_page:
            return self.send(200, b"<html>Log in to the network first</html>", {"Content-Type": "text/html"})
        if self.refused(of_file is not None):
            return
        if of_file and hub.faults.redirects and "/resolve/" in path:
            elsewhere = hub.url.replace("127.0.0.1", "localhost") + self.path.replace("/resolve/", "/stored/")
            return self.send(302, b"", {"Location": elsewhere})
        if of_file:
            return self.file(*of_file.groups())
        if of_api:
            return self.api(*of_api.groups())
        self.send(404, b"")

    def refused(self, is_file: bool) -> bool:
        faults = self.here.faults
        if faults.gated and is_file | (not faults.only_files):
            self.send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif faults.forbidden:
            self.send(403, b"")
        elif faults.busy and (is_file or not faults.only_files):
            faults.busy -= faults.busy > 0
            told = {"Retry-After": faults.retry_after, "RateLimit": faults.rate_limit}
            self.send(429, b"", {name: value for name, value in told.items() if value})
        elif faults.broken and (is_file or not faults.only_files):
            faults.broken -= faults.broken > 0
            self.send(faults.broken_as, b"")
        else:
            return False
        return True

    def dataset(self, name: str, revision: str | None) -> dict[str, bytes] | None:
        hub = self.here
        if name in hub.models:
            return hub.models[name]
        if name not in hub.datasets:  # the hub says the same of what is private
            self.send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."})
        elif revision not in (None, "main", hub.commit):
            self.send(404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        else:
            return hub.datasets[name]
        return None

    def api(self, name: str, revision: str | None) -> None:
        if (files := self.dataset(name, revision)) is None:
            return
        answer: dict[str, Any] = {"_id": "0", "id": name, "sha": self.here.commit}
        if "expand" not in self.path or "siblings" in self.path:
            answer["siblings"] = []
            for path, content in files.items():
                stated = self.here.faults.stated_size
                size = len(content) if stated is None or path == "README.md" else stated
                one: dict[str, Any] = {"rfilename": path, "blobId": "0"}
                one |= {} if self.here.faults.no_sizes else {"size": size}
                if path.endswith((".parquet", ".gz")):
                    digest = hashlib.sha256(content).hexdigest()
                    one["lfs"] = {"sha256": digest, "size": size, "pointerSize": 130}
                answer["siblings"].append(one)
        self.send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def file(self, name: str, revision: str, path: str) -> None:
        if (files := self.dataset(name, revision)) is None:
            return
        if path not in files:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        content, faults = files[path], self.here.faults
        if faults.spoiled:
            content = content[:-1] + bytes([content[-1] ^ 1])
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": self.here.commit}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted or faults.no_ranges:
            return self.send(200, content, headers, is_file=True)
        first, last = int(wanted[1]), int(wanted[2] or len(content) - 1)
        if first >= len(content):
            return self.send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        last = min(last, len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self.send(206, content[first : last + 1], headers, is_file=True)

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, is_file: bool = False) -> None:
        hub = self.here
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if is_file and hub.faults.cut_in_turn:
            hub.faults.cut_after, *others = hub.faults.cut_in_turn
            hub.faults.cut_in_turn = (*others, hub.faults.cut_after)
        ends = [one for one in (hub.faults.stop_after, hub.faults.cut_after) if one is not None and is_file]
        if is_file and hub.faults.in_all is not None:
            ends.append(max(0, hub.faults.in_all - hub.n_bytes))
        end = min([len(body), *ends])
        try:
            for at in range(0, end, 1 << 16):
                chunk = body[at : min(at + (1 << 16), end)]
                self.wfile.write(chunk)
                hub.n_bytes += len(chunk) if is_file else 0
                if is_file and hub.stopping.wait(hub.faults.seconds_per_chunk):
                    break
            if end < len(body):
                if hub.faults.stop_after is not None:
                    self.wfile.flush()
                    hub.stopping.wait(120)
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # who asked has hung up
            self.close_connection = True


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    """Return when `condition()` holds; fail where it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)
