"""The digests of base images come from the registries that the Dockerfiles name, and are written to a file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shortlist.contracts import ShortlistError
from shortlist.kubeflow.base_images import base_images, lock_base_images
from shortlist.kubeflow.images import BASES, base_digests

DIGEST = "sha256:" + "ab" * 32
DOCKERFILE = "ARG PYTHON_DIGEST\nFROM docker.io/library/python:3.11-slim@${PYTHON_DIGEST} AS builder\n"


class Registry(BaseHTTPRequestHandler):
    """A registry that wants a token from everybody, as public ones do."""

    digest = DIGEST
    requested_paths: list[str]

    def do_HEAD(self) -> None:
        type(self).requested_paths.append(self.path)
        token = self.headers.get("authorization")
        if token != "Bearer for-everybody":  # noqa: S105 - of the test
            self.send_response(401)
            realm = f"http://127.0.0.1:{self.server.server_address[1]}/token"
            self.send_header("www-authenticate", f'Bearer realm="{realm}",service="r",scope="pull"')
        elif self.path.endswith("/3.11-slim"):
            self.send_response(200)
            self.send_header("docker-content-digest", self.digest)
        else:
            self.send_response(404)
        self.end_headers()

    def do_GET(self) -> None:
        content = b'{"token": "for-everybody"}' if "scope=pull" in self.path else b"{}"
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    Registry.requested_paths, Registry.digest = [], DIGEST
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "bases.env").write_text("# a comment\nPYTHON_DIGEST=\nOTHER=1\n")
    return tmp_path


def test_each_base_of_ours_has_a_tag_and_a_line() -> None:
    names = {str(image): image.variable for image in base_images()}
    assert set(names.values()) == {"PYTHON_DIGEST", "TRITON_DIGEST"}
    text = BASES.read_text()
    assert all(f"\n{variable}=" in text for variable in names.values())
    assert all(name in text for name in names)  # the file says which tag each is


def test_the_digest_of_a_tag_is_written_to_the_file(folder: Path, registry: str) -> None:
    bases = folder / "bases.env"
    assert lock_base_images(folder, bases, write=False, url_of=lambda _: registry) == [
        f"locked: docker.io/library/python:3.11-slim is {DIGEST}"
    ]
    assert "PYTHON_DIGEST=\n" in bases.read_text()
    lock_base_images(folder, bases, url_of=lambda _: registry)
    assert bases.read_text() == f"# a comment\nPYTHON_DIGEST={DIGEST}\nOTHER=1\n"
    assert lock_base_images(folder, bases, url_of=lambda _: registry)[0].startswith("unchanged: ")
    assert set(Registry.requested_paths) == {"/v2/library/python/manifests/3.11-slim"}


def test_a_build_uses_the_locked_digest(folder: Path, registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bases = folder / "bases.env"
    lock_base_images(folder, bases, url_of=lambda _: registry)
    monkeypatch.delenv("PYTHON_DIGEST", raising=False)
    monkeypatch.setattr("shortlist.kubeflow.images.BASES", bases)
    assert base_digests(["pipeline"])["PYTHON_DIGEST"] == DIGEST


def test_a_missing_tag_leaves_the_file_unchanged(folder: Path, registry: str) -> None:
    (folder / "pipeline.Dockerfile").write_text(DOCKERFILE.replace("3.11-slim", "3.99"))
    text_before = (folder / "bases.env").read_text()
    with pytest.raises(ShortlistError, match=r"python:3\.99: its registry answers 404 .* does the tag exist"):
        lock_base_images(folder, folder / "bases.env", url_of=lambda _: registry)
    assert (folder / "bases.env").read_text() == text_before


def test_an_unreachable_registry_is_named_in_the_error(folder: Path) -> None:
    with pytest.raises(ShortlistError, match=r"python:3\.11-slim: its registry does not answer \(ConnectError"):
        lock_base_images(folder, folder / "bases.env", url_of=lambda _: "http://127.0.0.1:9")


def test_an_answer_that_is_no_digest_is_refused(folder: Path, registry: str) -> None:
    Registry.digest = "latest"
    with pytest.raises(ShortlistError, match=r"answers 200 with digest 'latest'"):
        lock_base_images(folder, folder / "bases.env", url_of=lambda _: registry)


def test_one_variable_for_two_images_is_refused(folder: Path) -> None:
    (folder / "gpu.Dockerfile").write_text(DOCKERFILE.replace("3.11", "3.12"))
    with pytest.raises(ShortlistError, match=r"PYTHON_DIGEST is the digest of .*3\.1\d-slim here, and of"):
        base_images(folder)


def test_a_token_address_without_https_is_refused(folder: Path, registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "send_header", _elsewhere(Registry.send_header))
    with pytest.raises(ShortlistError, match=r"token address is 'http://evil\.example"):
        lock_base_images(folder, folder / "bases.env", url_of=lambda _: registry)


def _elsewhere(real: object) -> object:
    def send(self: Registry, name: str, value: str) -> None:
        if name == "www-authenticate":
            value = 'Bearer realm="http://evil.example/token",scope="pull"'
        real(self, name, value)  # type: ignore[operator]

    return send
