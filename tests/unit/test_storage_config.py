"""The text of the graphs' `stores` parameter, which never contains a secret."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from obstore.store import LocalStore
from pydantic import ValidationError

from shortlist.contracts import ShortlistError
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.runtime import Runtime
from shortlist.storage.objects import OBJECT_STORES, local_copy, open_object_store, read_file
from shortlist.storage.storage_config import StorageConfig, redact_passwords

ON_SERVERS = StorageConfig(
    cluster="blue", objects="s3://models/a", database_variable="DATABASE", tracking_variable="MLFLOW"
)


@pytest.mark.parametrize("stores", [StorageConfig(folder=Path("/runs/stores"), epoch="1"), ON_SERVERS])
def test_stores_are_read_as_they_are_written(stores: StorageConfig) -> None:
    assert StorageConfig.parse(str(stores)) == stores


def test_a_laptops_stores_are_a_folder_and_an_epoch() -> None:
    assert str(StorageConfig(folder=Path("/runs/stores"), epoch="1")) == "/runs/stores#1"
    assert StorageConfig.parse("/runs/stores").runs == Path("/runs")


def test_servers_are_named_by_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE", "postgresql://me:pa55@host/db")
    assert ON_SERVERS.database_uri == "postgresql://me:pa55@host/db"
    assert "pa55" not in f"{ON_SERVERS} {ON_SERVERS!r}"
    assert ON_SERVERS.runs.name == "blue"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW", raising=False)
    with pytest.raises(ShortlistError, match=r"runtime\.tracking: the environment variable MLFLOW is not set"):
        _ = ON_SERVERS.tracking_uri
    with pytest.raises(ShortlistError, match="'feast' needs a folder, and these stores have none"):
        ON_SERVERS.path_in_folder("feast")
    with pytest.raises(ShortlistError, match="stores: Extra inputs are not permitted"):
        StorageConfig.parse('{"bucket": "a"}')


@pytest.mark.parametrize(
    "text",
    ["postgresql://me:pa55@host/db is away", "host:1,password=pa55,ssl=true refuses", "http://me:pa55@h: a@b"],
)
def test_secrets_are_taken_out(text: str) -> None:
    assert "pa55" not in redact_passwords(text)


FORMS = (
    "postgresql://me:{}@host:5432/db?sslmode=require",
    "redis://:{}@host:6379/0",
    "'https://{}@host/path'",
    "host=h dbname=d password={}",
    "host:6379,password={},ssl=true",
    "https://host/path?token={}&page=2",
    "AWS_SECRET_ACCESS_KEY={}",
)


@given(
    middle=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
    form=st.sampled_from(FORMS),
    quoted=st.booleans(),
    prefix=st.sampled_from(["", "cannot reach ", "a@b says: "]),
    suffix=st.sampled_from(["", " is away", " (FATAL), ask me@host", " and redis://other:6379"]),
)
def test_passwords_are_redacted(middle: str, form: str, quoted: bool, prefix: str, suffix: str) -> None:
    """Whatever is in it: a slash, an at sign, a comma, quotes; written as it is or as URLs want it."""
    if "&" in middle or ",a=" in f"{middle}=" or re.search(r",\w+=", middle):
        quoted = True  # these end a value where it is not quoted
    password = "pa55" + (quote(middle, safe="") if quoted else middle) + "55ap"
    redacted = redact_passwords(prefix + form.format(password) + suffix)
    assert "pa55" not in redacted
    assert "55ap" not in redacted
    assert redact_passwords(redacted) == redacted
    assert redacted.startswith(prefix)
    assert redacted.endswith(suffix)


@pytest.mark.parametrize("text", ["", "http://127.0.0.1:8080/v2 is away", "rows=5, user=me", "ask me@host", "a//b c@d"])
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_passwords(text) == text


PASSWORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=6, max_size=30).filter(
    lambda text: not text.isspace() and text not in "postgresql://me:@host:5432/db password= refuses,ssl=true"
)


@given(PASSWORDS)
@example("pa/ss@wo,rd")
@example("//@//@,password=,x=1")
def test_a_password_of_any_characters_is_taken_out_of_addresses(password: str) -> None:
    for written in (password, quote(password, safe="")):
        redacted = redact_passwords(f"cannot reach postgresql://me:{written}@host:5432/db at all")
        assert redacted == "cannot reach postgresql://***@host:5432/db at all"


@given(PASSWORDS)
def test_a_password_of_the_environment_is_taken_out_wherever_it_stands(password: str) -> None:
    values = {
        # Redis' own form cannot hold a comma.
        "SHORTLIST_REDIS": f"host:6379,password={password.replace(',', '.').replace('&', '.')},ssl=true",
        "SHORTLIST_DATABASE": f"postgresql://me:{quote(password, safe='')}@host/db",
        "SOME_TOKEN": password,
    }
    for name, value in values.items():
        with pytest.MonkeyPatch.context() as patch:
            for other in values:
                patch.delenv(other, raising=False)
            patch.setenv(name, value)
            password_text = password.replace(",", ".").replace("&", ".") if name == "SHORTLIST_REDIS" else password
            assert password_text not in redact_passwords(
                f"the server says: {value} is wrong; <{password_text}>"
            ).replace("***", "")


def share_client(url: str) -> LocalStore:
    """The client of an object store that only this file knows: `share:///folder`."""
    return LocalStore(url.removeprefix("share://"), mkdir=True)


def test_an_object_store_of_ones_own_keeps_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBJECT_STORES, "share", f"{__name__}:share_client")
    (tmp_path / "fit").mkdir()
    (tmp_path / "fit" / "views.json").write_text("[]")
    runtime = Runtime.model_validate({"objects": {"kind": "bucket", "url": f"share://{tmp_path}/kept"}})
    objects = open_object_store(RunsFolder.open(tmp_path / "runs").storage_config_for(runtime))
    address = objects.put_folder(tmp_path / "fit", "fits/1")
    assert address == f"share://{tmp_path}/kept/fits/1"
    assert (local_copy(address, tmp_path / "cache") / "views.json").read_text() == "[]"
    assert read_file(address, "views.json") == b"[]"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/models", "no object store is known by 'ftp'; wanted s3:// or gs://"),
        ("file:///models", "no object store is known by 'file'; wanted s3:// or gs://"),
        ("s3://Models", "got 's3://Models'; wanted a bucket and perhaps a prefix, e.g. s3://models/shortlist"),
    ],
)
def test_a_spec_can_declare_only_known_addresses(url: str, message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        Runtime.model_validate({"objects": {"kind": "bucket", "url": url}})


def test_an_unknown_address_names_the_known_kinds() -> None:
    with pytest.raises(ShortlistError, match="no object store is known by 'ftp'; wanted one of s3://, gs://, file://"):
        open_object_store(StorageConfig(objects="ftp://host/models"))
