"""Files in a folder and in a real S3 server: the same behaviour, and clear errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from shortlist.contracts import ShortlistError
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.objects import ObjectStore, local_copy, open_object_store
from shortlist.storage.objects_record import RECORD
from shortlist.storage.storage_config import StorageConfig

KEY = "views/0123456789abcdef"
SECRET = "secret-of-the-test"  # noqa: S105 - see conftest


@pytest.fixture(params=["folder", "bucket"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_object_store(StorageConfig(folder=tmp_path / "stores"))
    return open_object_store(StorageConfig(objects=request.getfixturevalue("s3").url))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    created = tmp_path / "made"
    (created / "day=1").mkdir(parents=True)
    (created / "views.json").write_text("{}")
    (created / "day=1/a.parquet").write_bytes(b"rows")
    return created


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_downloaded_folder_equals_the_uploaded_folder(objects: ObjectStore, folder: Path, tmp_path: Path) -> None:
    address = objects.put_folder(folder, KEY)
    assert address == objects.url(KEY) == f"{objects.root}/{KEY}"
    assert objects.put_folder(folder, KEY) == address  # the very same again
    fetched = objects.fetch_folder(KEY, tmp_path / "copy")
    assert files_of(fetched) == files_of(folder)
    assert objects.keys("views/") == [f"{KEY}/{name}" for name in ("day=1/a.parquet", RECORD, "views.json")]


def test_another_folder_cannot_take_its_place(objects: ObjectStore, folder: Path, tmp_path: Path) -> None:
    objects.put_folder(folder, KEY)
    (folder / "views.json").write_text("{1}")
    with pytest.raises(IntegrityError, match=r"'views.json' is another file; published folders never change"):
        objects.put_folder(folder, KEY)
    assert files_of(objects.fetch_folder(KEY, tmp_path / "copy"))["views.json"] == b"{}"


def test_a_folder_without_its_record_is_not_whole(objects: ObjectStore, folder: Path, tmp_path: Path) -> None:
    objects.write(f"{KEY}/views.json", b"{}")  # a publisher that was killed
    with pytest.raises(IntegrityError, match="nothing whole is there"):
        objects.fetch_folder(KEY, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    objects.put_folder(folder, KEY)  # the next one ends it
    assert files_of(objects.fetch_folder(KEY, tmp_path / "copy")) == files_of(folder)


def test_a_changed_file_is_found_when_it_is_fetched(objects: ObjectStore, folder: Path, tmp_path: Path) -> None:
    objects.put_folder(folder, KEY)
    objects.write(f"{KEY}/day=1/a.parquet", b"evil")
    with pytest.raises(IntegrityError, match=r"a\.parquet.*(changed after|another file)"):
        objects.fetch_folder(KEY, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_that_is_there_stays_unless_it_was_changed(objects: ObjectStore, folder: Path, tmp_path: Path) -> None:
    objects.put_folder(folder, KEY)
    copy = objects.fetch_folder(KEY, tmp_path / "copy")
    state_before = (copy / "views.json").stat().st_mtime_ns
    objects.fetch_folder(KEY, copy)
    assert (copy / "views.json").stat().st_mtime_ns == state_before
    (copy / "views.json").write_text("changed")
    assert files_of(objects.fetch_folder(KEY, copy)) == files_of(folder)


def test_single_files(objects: ObjectStore, tmp_path: Path) -> None:
    assert objects.read("serving.json") is None
    objects.write("serving.json", b"1")
    objects.write("serving.json", b"2")
    assert objects.read("serving.json") == b"2"
    (tmp_path / "page.html").write_bytes(b"page")
    objects.put_file(tmp_path / "page.html", "pages/page.html")
    assert objects.read("pages/page.html") == b"page"
    assert objects.keys("") == ["pages/page.html", "serving.json"]
    assert objects.keys("pages/p") == ["pages/page.html"]


def test_one_of_many_creates(objects: ObjectStore) -> None:
    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(lambda number: objects.create("cluster.json", str(number).encode()), range(4)))
    assert sum(won) == 1
    assert objects.read("cluster.json") == str(won.index(True)).encode()


def test_a_remote_folder_is_copied_to_this_machine(
    s3: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORTLIST_CACHE", str(tmp_path / "cache"))
    address = ObjectStore(s3.url).put_folder(folder, KEY)
    assert files_of(local_copy(address)) == files_of(folder)
    assert local_copy(str(folder)) == folder
    part = local_copy(f"{address}#day=1")
    assert files_of(part) == {"a.parquet": b"rows"}
    assert local_copy(f"{address}#day=1", tmp_path / "other") != part == local_copy(f"{address}#day=1")


def test_a_part_of_a_folder_is_fetched_alone(objects: ObjectStore, folder: Path, tmp_path: Path) -> None:
    objects.put_folder(folder, KEY)
    assert files_of(objects.fetch_folder(KEY, tmp_path / "copy", "day=1")) == {"a.parquet": b"rows"}
    with pytest.raises(IntegrityError, match="has no folder 'day'"):
        objects.fetch_folder(KEY, tmp_path / "none", "day")


def test_a_missing_folder_is_an_error(objects: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="nothing to publish"):
        objects.put_folder(tmp_path / "nowhere", KEY)


def test_a_bucket_that_vanishes_is_named(s3: Any, folder: Path, tmp_path: Path) -> None:
    objects = ObjectStore(s3.url)
    objects.put_folder(folder, KEY)
    s3.delete_bucket()
    expected_message = (
        rf"there is no bucket '{s3.bucket}' at http://127.0.0.1:\d+; make it, or correct runtime.objects.url"
    )
    calls = (
        lambda: objects.put_folder(folder, KEY),
        lambda: objects.fetch_folder(KEY, tmp_path / "copy"),
        lambda: objects.put_file(folder / "views.json", "a"),
        lambda: objects.read("a"),
        lambda: objects.write("a", b""),
        lambda: objects.create("a", b""),
        lambda: objects.keys("a"),
    )
    for call in calls:
        with pytest.raises(ShortlistError, match=expected_message) as caught:
            call()
        assert caught.value.__cause__ is None
    assert not (tmp_path / "copy").exists()


def test_a_bucket_that_vanishes_half_way_leaves_nothing_that_looks_whole(
    s3: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, put_file = ObjectStore(s3.url), ObjectStore.put_file

    def delete_bucket_then_call(self: ObjectStore, file: Path, key: str) -> None:
        put_file(self, file, key)
        s3.delete_bucket()

    monkeypatch.setattr(ObjectStore, "put_file", delete_bucket_then_call)
    with pytest.raises(ShortlistError, match="there is no bucket"):
        objects.put_folder(folder, KEY)
    s3.client().create_bucket(Bucket=s3.bucket)
    assert objects.read(f"{KEY}/{RECORD}") is None


@pytest.fixture
def strict(s3: Any) -> Iterator[Any]:
    """The store, which now looks at credentials."""
    reset(s3.endpoint, b"0")
    yield s3
    reset(s3.endpoint, b"inf")


def reset(endpoint: str, calls: bytes) -> None:
    plain = {"Content-Type": "text/plain"}
    with urlopen(Request(f"{endpoint}/moto-api/reset-auth", calls, plain, method="POST")) as answer:  # noqa: S310
        assert answer.status == 200


def test_wrong_credentials_are_never_printed(strict: Any) -> None:
    objects = ObjectStore(strict.url)
    for call in (lambda: objects.read("a"), lambda: objects.write("a", b""), lambda: objects.keys("")):
        with pytest.raises(ShortlistError, match=r"refuses the credentials.*check AWS_ACCESS_KEY_ID") as caught:
            call()
        assert SECRET not in str(caught.value) and "key-of-the-test" not in str(caught.value)


def test_missing_credentials(s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(ShortlistError, match="or there are none; check AWS_ACCESS_KEY_ID"):
        ObjectStore(s3.url).read("a")


def test_an_unreachable_store_is_named(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ShortlistError, match=r"the store at http://127.0.0.1:9 cannot be reached"):
        ObjectStore(s3.url).read("a")


def test_google_without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ShortlistError, match=r"or there are none; check GOOGLE_APPLICATION_CREDENTIALS"):
        ObjectStore("gs://models/shortlist").read("a")


def test_transient_errors_are_retried(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(BaseHTTPRequestHandler):
        calls = 0

        def do_GET(self) -> None:
            Busy.calls += 1
            busy = Busy.calls == 1
            body = b"<Error><Code>SlowDown</Code><Message>busy</Message></Error>" if busy else b"content"
            self.send_response(503 if busy else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "7")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        try:
            assert ObjectStore(s3.url).read("a") == b"content"
        finally:
            server.shutdown()
            thread.join()
    assert Busy.calls == 2
