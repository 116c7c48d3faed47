"""State from files is equal to state from a cluster, with missing kinds reported."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.snapshot.pods import OTHER_VALUE
from gpu_healthcheck.diagnosis.sources.bundle import Bundle
from gpu_healthcheck.diagnosis.sources.saved import SavedStateError, read_saved
from tests.console import typed
from tests.diagnosis.states import NOW, ago, container, event, node, obj, pod
from tests.permissions import as_nobody


def _write(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def test_saved_lists_objects_and_folders_are_read(tmp_path: Path) -> None:
    mixed = {"kind": "List", "items": [node("a"), pod("x")]}
    typed = {"kind": "PodList", "items": [{k: v for k, v in pod("y").items() if k not in ("kind", "apiVersion")}]}
    _write(tmp_path / "dump/team/pods.json", typed)
    state = read_saved(
        [_write(tmp_path / "all.json", mixed), _write(tmp_path / "b.json", node("b")), tmp_path / "dump"]
    )
    assert [one.name for one in state.nodes] == ["a", "b"]
    assert [one.meta.name for one in state.pods] == ["x", "y"]


def test_saved_state_without_a_kind_does_not_see_it(tmp_path: Path) -> None:
    state = read_saved([_write(tmp_path / "pods.json", {"kind": "PodList", "items": []})])
    assert state.sees("Pod")
    assert not state.sees("Node")
    assert state.missing["Node"] == "not in the saved files"


def test_saved_state_time_is_the_newest_and_no_deadline(tmp_path: Path) -> None:
    leaving = pod("x", metadata={"deletionTimestamp": "2036-01-01T00:00:00Z"})
    state = read_saved(
        [_write(tmp_path / "x.json", {"kind": "List", "items": [leaving, event(leaving, "A", "b", minutes=3)]})]
    )
    assert state.now.isoformat() == ago(3).replace("Z", "+00:00")


@pytest.mark.parametrize(
    ("objects", "minutes"),
    [([pod("x", age=60)], 30), ([pod("x", age=60), node("a", age=60)], 60), ([obj("Job", "x", age=60)], 30)],
    ids=["a pod alone", "a pod and a node", "a job alone"],
)
def test_saved_objects_without_a_clock_have_waited(
    tmp_path: Path, objects: list[dict[str, Any]], minutes: float
) -> None:
    for entry in objects:
        entry["status"] = {}
    state = read_saved([_write(tmp_path / "x.json", {"kind": "List", "items": objects})])
    assert state.now.isoformat() == ago(minutes).replace("Z", "+00:00")


@pytest.mark.parametrize(
    ("words", "kinds", "code", "message"),
    [
        (["-n", "tema"], [obj("Namespace", "team")], 3, "there is no namespace tema; do you mean team?"),
        (["-n", "nope"], [obj("Namespace", "team")], 3, "there is no namespace nope\n"),
        (["pod", "nope/x"], [obj("Namespace", "team")], 3, "there is no namespace nope\n"),
        (["-n", "team"], [obj("Namespace", "team")], 2, ""),
        (["-n", "nope"], [], 2, ""),
        (["hami"], [node("a")], 2, "HAMi can't be read: not in the saved files"),
        (["pod", "team/y"], [pod("y") | {"spec": {"nodeName": 5}}], 2, "pod/team/y can't be read: spec: nodeName: "),
    ],
)
def test_a_namespace_that_does_not_exist_is_reported_if_namespaces_are_visible(
    tmp_path: Path, words: list[str], kinds: list[dict[str, Any]], code: int, message: str
) -> None:
    file = _write(tmp_path / "x.json", {"kind": "List", "items": [pod("x", on="a"), *kinds]})
    done = typed(["diagnose", *words, "--from", str(file)], {})

    assert done.returncode == code
    assert message in done.stderr.decode()


def test_saved_file_with_several_documents_is_read(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    lists = ({"kind": "NodeList", "items": [node("a")]}, {"kind": "PodList", "items": [pod("x")]})
    file.write_text("\n".join(json.dumps(entry, indent=4) for entry in lists) + "\n")

    state = read_saved([file])

    assert ([one.name for one in state.nodes], [one.meta.name for one in state.pods]) == (["a"], ["x"])


def test_bundle_omits_attributes_of_a_volumes_driver(tmp_path: Path) -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    spec = {
        "csi": {"driver": "x.example", "volumeAttributes": {"password": "hunter2"}},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    bundle = Bundle()
    bundle.keep("PersistentVolume", obj("PersistentVolume", "pv-1", spec=spec))
    bundle.write(tmp_path / "state.tar.gz", NOW, {})

    (volume,) = read_saved([tmp_path / "state.tar.gz"]).volumes

    assert volume.terms is not None
    with tarfile.open(tmp_path / "state.tar.gz") as archive:
        assert b"hunter2" not in b"".join(archive.extractfile(tar_info).read() for tar_info in archive)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("{", "not the JSON"),
        ("", "not the JSON"),
        ("apiVersion: v1\nkind: List\n", "nothing recognised: it has no output of kubectl"),
        ('{"kind": "PodList", "items": []}\n==== START logs', "not the JSON"),
        ("[1]", "an object of the Kubernetes API"),
        ('{"items": []}', "an object of the Kubernetes API"),
        ("[" * 100_000, "not the JSON"),
    ],
)
def test_saved_file_without_a_state_is_refused(tmp_path: Path, content: str, wanted: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(SavedStateError, match=f"{file}.*{wanted}"):
        read_saved([file])


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SavedStateError, match="No such file"):
        read_saved([tmp_path / "none.json"])
    with pytest.raises(SavedStateError, match=r"no \.json file"):
        read_saved([tmp_path])


def test_saved_folder_skips_pipes_and_devices(tmp_path: Path) -> None:
    """Reading one may block forever."""
    os.mkfifo(tmp_path / "a.json")
    os.mkfifo(tmp_path / "logs.txt")
    (tmp_path / "b.json").symlink_to("/dev/zero")
    (tmp_path / "nodes.json").write_text('{"kind": "NodeList", "apiVersion": "v1", "items": []}')

    assert read_saved([tmp_path]).nodes == ()


def test_saved_folder_names_a_subfolder_without_permission(short_root: Path) -> None:
    (short_root / "nodes.json").write_text('{"kind": "NodeList", "apiVersion": "v1", "items": []}')
    (short_root / "pods").mkdir(mode=0)
    short_root.chmod(0o755)

    with as_nobody(), pytest.raises(SavedStateError, match="Permission denied"):
        read_saved([short_root])


def test_bundle_is_read_back_without_secrets(tmp_path: Path) -> None:
    env = [{"name": "TOKEN", "value": "s3cret"}, {"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]
    probe = {"failureThreshold": 9, "httpGet": {"httpHeaders": [{"name": "Authorization", "value": "s3cret"}]}}
    words = {"command": ["run", "--token=s3cret"], "args": ["s3cret"], "startupProbe": probe}
    secretive = pod(
        "x",
        containers=[container("main", 1, env=env, **words)],
        annotations={"kubectl.kubernetes.io/last-applied-configuration": "s3cret", "vault/token": "s3cret"},
    )
    bundle, file = Bundle(), tmp_path / "state.tar.gz"
    for entry in (node("a"), node("b"), secretive):
        bundle.keep(entry["kind"], entry)
    bundle.write(file, NOW, {"Event": "the right to list events is missing"})
    state = read_saved([file])
    assert [one.name for one in state.nodes] == ["a", "b"]
    assert state.pods[0].spec.containers[0].env == {"TOKEN": OTHER_VALUE, "CUDA_VISIBLE_DEVICES": "0"}
    assert str(state.pods[0].spec.containers[0].startup) == "failureThreshold 9 x periodSeconds 10 = 90 s"
    assert state.missing["Event"] == "the right to list events is missing"
    assert state.now == NOW
    with tarfile.open(file) as archive:
        whole = b"".join(archive.extractfile(tar_info).read() for tar_info in archive)  # type: ignore[union-attr]
    assert b"s3cret" not in whole
    assert file.stat().st_mode & 0o077 == 0


def test_bundle_overwrites_no_file(tmp_path: Path) -> None:
    file = tmp_path / "state.tar.gz"
    file.write_text("mine")
    with pytest.raises(FileExistsError):
        Bundle().write(file, NOW, {})


def test_dump_logs_are_read_by_container(tmp_path: Path) -> None:
    _write(tmp_path / "team/pods.json", {"kind": "PodList", "items": [pod("x")]})
    log = "epoch 1\nCUDA out of memory\x1b[0m\n"
    parts = [
        f"==== START logs for {owner} ====\n{log}==== END logs for {owner} ====\n"
        for owner in ("container main of pod team/x", "container other of pod team/x")
    ]
    (tmp_path / "team/x").mkdir()
    (tmp_path / "team/x/logs.txt").write_text("".join(parts))

    logs = read_saved([tmp_path]).logs

    assert sorted(logs) == [("pod/team/x", "main"), ("pod/team/x", "other")]
    assert logs["pod/team/x", "main"] == "epoch 1\nCUDA out of memory\\x1b[0m"
