"""Versions in a real object store: published once, verified by every pod, and what a bucket can do wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kserve_world import World
from kube_server import KubeServer

from shortlist.contracts import ShortlistError
from shortlist.rollout.kserve.objects.published import model_key
from shortlist.rollout.kserve.servers import fetch
from shortlist.storage.artefacts import IntegrityError, folder_digest
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig


@pytest.fixture
def in_s3(kube: KubeServer, tmp_path: Path, s3: Any) -> World:
    world = World(tmp_path, kube.url)
    world.objects = open_object_store(StorageConfig(objects=s3.url))
    world.serve(1)
    return world


def fetch_arguments(world: World, s3: Any, digest: str, to: Path) -> list[str]:
    key = model_key(world.fleet().owner, 1, world.deployment(1).digest)
    return ["--source", s3.url, "--key", key, "--digest", digest, "--to", str(to)]


def published(s3: Any) -> list[str]:
    keys: list[str] = s3.keys()
    return keys


def test_a_pod_fetches_what_was_published(in_s3: World, s3: Any, tmp_path: Path) -> None:
    digest, to = in_s3.deployment(1).digest, tmp_path / "pod" / "model"
    for _ in range(2):  # a container that is started again finds them there
        assert fetch.main(fetch_arguments(in_s3, s3, digest, to)) == 0
    assert folder_digest(to) == digest
    in_s3.fleet().verify(1)


def test_a_pod_refuses_other_files(in_s3: World, s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch.main(fetch_arguments(in_s3, s3, "0" * 16, tmp_path / "pod" / "model")) == fetch.REFUSED
    assert "refused to start: " in (output := capsys.readouterr().err)
    assert f"but this pod serves {'0' * 16}; nothing is started" in output


def test_a_pod_with_a_file_replaced_in_the_bucket_does_not_start(in_s3: World, s3: Any, tmp_path: Path) -> None:
    digest = in_s3.deployment(1).digest
    (key,) = [
        key_present
        for key_present in published(s3)
        if key_present.endswith("v1-" + in_s3.deployment(1).digest + "/model/model.json")
    ]
    s3.client().put_object(Bucket=s3.bucket, Key=key, Body=b'{"version": 9}')
    assert fetch.main(fetch_arguments(in_s3, s3, digest, tmp_path / "pod" / "model")) == fetch.REFUSED
    assert not (tmp_path / "pod" / "model").exists()


def test_a_file_that_vanished_is_found_before_users_are_sent(in_s3: World, s3: Any) -> None:
    (key,) = [
        key_present
        for key_present in published(s3)
        if key_present.endswith("v1-" + in_s3.deployment(1).digest + "/model/model.json")
    ]
    s3.client().delete_object(Bucket=s3.bucket, Key=key)
    with pytest.raises(IntegrityError, match=r"'model\.json' is missing or was added"):
        in_s3.fleet().verify(1)


def test_a_bucket_that_vanishes_makes_no_version(in_s3: World, s3: Any, kube: KubeServer) -> None:
    s3.delete_bucket()
    with pytest.raises(ShortlistError, match="bucket"):
        in_s3.fleet().deploy(in_s3.deployment(2))
    assert kube.named("InferenceService") == [in_s3.name(1)]
