"""Real servers for the cluster profile's tests: PostgreSQL, Redis, and an object store that speaks S3.

A test that asks for one of them is skipped, with the reason, where its program is not installed. Servers run once per
session, on free ports of the loopback; every test gets an empty database, Redis and bucket of its own.
"""

from __future__ import annotations

import logging
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import pytest

_PASSWORD: Final = "pa55-of-the-database"  # noqa: S105 - of a server that lives as long as the test
_REGION: Final = "us-east-1"
_SECONDS: Final = 60
_PLACES: Final = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin")


@dataclass(frozen=True)
class S3:
    """An empty bucket of an S3 server."""

    url: str
    """`s3://bucket/prefix`."""
    endpoint: str
    """`http://127.0.0.1:port`."""
    bucket: str
    environment: Mapping[str, str]
    """Environment variables of its clients; set in this process while the test runs."""

    def client(self) -> Any:
        """Return a plain client, to look at what is there or to break it."""
        import boto3

        return boto3.client("s3", endpoint_url=self.endpoint)

    def keys(self) -> list[str]:
        """Return all keys of the bucket, sorted."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return sorted(object_["Key"] for page in pages for object_ in page.get("Contents", ()))

    def delete_bucket(self) -> None:
        """Make the bucket vanish with all that is in it."""
        client = self.client()
        for key in self.keys():
            client.delete_object(Bucket=self.bucket, Key=key)
        client.delete_bucket(Bucket=self.bucket)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL server's address without a database: `postgresql://user:password@host:port`."""
    programs = _postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="requirements/cluster.txt is not installed")
    user_name = _unprivileged()
    folder = Path(mkdtemp(prefix="shortlist-postgres-"))
    if user_name and programs.is_relative_to(sys.prefix):  # the environment may lie where that user may not enter
        for name in ("pgserver/pginstall", "pgserver.libs"):
            shutil.copytree(programs.parents[2] / name, folder / name, symlinks=True)
        programs = folder / "pgserver/pginstall/bin"
    secret = folder / "password"
    secret.write_text(_PASSWORD)
    if user_name:
        for path in (folder, secret):
            shutil.chown(path, user_name, pwd.getpwnam(user_name).pw_gid)
    run: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    if user_name:  # initdb refuses root
        run |= {"user": user_name, "group": pwd.getpwnam(user_name).pw_gid, "extra_groups": []}
    data, port = folder / "data", _free_port()
    options = ["-U", "shortlist", "-A", "scram-sha-256", "--pwfile", str(secret), "-E", "UTF8", "--no-sync"]
    subprocess.run([programs / "initdb", "-D", data, *options], check=True, stdout=subprocess.DEVNULL, **run)
    settings = {
        "listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off",
        "max_connections": 200, "shared_buffers": "32MB",
    }  # fmt: skip
    flags = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([programs / "postgres", "-D", data, *flags], stdout=log, **run)
    address = f"postgresql://shortlist:{_PASSWORD}@127.0.0.1:{port}"
    try:
        _wait(lambda: _answers_postgres(f"{address}/postgres"), server, folder / "log")
        yield address
    finally:
        _stop(server)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(postgres_server: str) -> Iterator[str]:
    """The URI of a database that is empty."""
    import psycopg

    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield f"{postgres_server}/{name}"
    with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """A Redis server's `host:port`."""
    program = shutil.which("redis-server") or shutil.which("redis-server", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("Redis is not installed (Debian: apt-get install redis-server)")
    folder, port = Path(mkdtemp(prefix="shortlist-redis-")), _free_port()
    flags = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([program, *flags], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        _wait(lambda: _answers_redis(port), server, folder / "log")
        yield f"127.0.0.1:{port}"
    finally:
        _stop(server)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def redis(redis_server: str) -> str:
    """The `host:port` of a Redis that is empty."""
    from redis import Redis

    host, _, port = redis_server.partition(":")
    with Redis(host, int(port)) as client:
        client.flushall()
    return redis_server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """An S3 server's address."""
    moto = pytest.importorskip("moto.server", reason="requirements/test.txt is not installed (moto)")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line per request otherwise
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> S3:
    """An empty bucket; the environment names the server and its keys as S3's clients read them."""
    environment = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "key-of-the-test",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
        "AWS_DEFAULT_REGION": _REGION,
        "AWS_REGION": _REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"test-{uuid.uuid4().hex[:12]}"
    store = S3(f"s3://{bucket}/shortlist", s3_server, bucket, environment)
    store.client().create_bucket(Bucket=bucket)
    return store


def _postgres_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, the newest release's."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).parent
    folders = [folder for pattern in _PLACES for folder in Path("/").glob(pattern[1:]) if (folder / "initdb").exists()]
    if not folders:
        return next(iter(Path(sys.prefix).glob("lib/python3*/site-packages/pgserver/pginstall/bin")), None)
    return max(folders, default=None, key=lambda folder: [int(part) for part in folder.parts if part.isdigit()])


def _unprivileged() -> str | None:
    """Return who runs PostgreSQL, if it may not be who runs the tests."""
    if os.geteuid() != 0:
        return None
    user_names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in user_names else "nobody"


def _answers_postgres(address: str) -> bool:
    import psycopg

    try:
        psycopg.connect(address, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _answers_redis(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _wait(answers: Callable[[], bool], server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while not answers():
        assert server.poll() is None, f"the server ended: {log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, f"no answer within {_SECONDS} s: {log.read_text()[-2000:]}"
        time.sleep(0.05)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown; the polite one waits for idle clients
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
