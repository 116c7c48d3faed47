"""Saved state that an attacker packed, or that was damaged: rejected in one line, and never misread."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpu_healthcheck.cli.app import app
from gpu_healthcheck.diagnosis.facts.crio_advice import crio_steps
from gpu_healthcheck.diagnosis.facts.node_services import runtime_steps
from gpu_healthcheck.diagnosis.sources import saved
from gpu_healthcheck.diagnosis.sources.bundle import Bundle
from gpu_healthcheck.diagnosis.sources.saved import SavedStateError, read_saved
from tests.diagnosis.states import NOW, node, pod, snapshot

Packed = bytes


def _tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> Packed:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _listed(*objects: Any) -> bytes:
    return json.dumps({"kind": "List", "items": list(objects)}).encode()


def _with_header(raw: Packed, at: int, offset: int, field: bytes, *, sealed: bool = True) -> Packed:
    """With other bytes in the header at `at`; `sealed`: under the checksum that they need."""
    header = bytearray(raw[at : at + 512])
    header[offset : offset + len(field)] = field
    if sealed:
        header[148:156] = b" " * 8
        header[148:156] = f"{sum(header):06o}\0 ".encode()
    return raw[:at] + bytes(header) + raw[at + 512 :]


def _one(name: str = "Node.json", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, _listed(node("a"))


def _diagnosed(*paths: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["diagnose", "--from", *map(str, paths), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


PLAIN = _tar(_one())
SIZE, KIND = 124, 156
LIMIT = "MiB unpacked"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (_with_header(PLAIN, 0, SIZE, b"77777777777\0"), LIMIT),
        (_with_header(PLAIN, 0, SIZE, b"\x80" + b"\x7f" * 11), LIMIT),
        (_with_header(PLAIN, 0, SIZE, b"\xff" * 12), "negative size"),
        (_with_header(PLAIN, 0, SIZE, b"-7777777777\0"), "negative size"),
        (_with_header(PLAIN, 0, KIND, b"S"), "a sparse file"),
        (_tar(_one(pax_headers={"size": "99999999999999"})), LIMIT),
        (_tar(_one(pax_headers={"size": "-1"})), "negative size"),
        (_tar(_one(pax_headers={"GNU.sparse.major": "1", "GNU.sparse.realsize": "1"})), "a sparse file"),
        (_tar(_one(pax_headers={"comment": "x" * 70_000})), "an extended header of 70,0"),
        (_tar(_one("n" * 70_000 + ".json"), form=tarfile.GNU_FORMAT), "an extended header of 70,0"),
        (_tar((tarfile.TarInfo("a"), b""))[:512] * 17_000, "over 16,384 headers"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_archive_beyond_a_limit_is_refused(
    raw: Packed, message: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    file = tmp_path / "state.tar.gz"
    file.write_bytes(pack(raw))

    code, output = _diagnosed(file)

    assert (code, output.count("\n")) == (2, 1), output
    assert output.startswith(f"gpu-healthcheck diagnose: {file}: ")
    assert message in output


def test_archive_skips_links_devices_and_folders(tmp_path: Path) -> None:
    """Whatever size their headers name, nothing of theirs follows."""
    kinds = (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, kind in enumerate(kinds):
            info = tarfile.TarInfo(f"{number}.json")
            info.type, info.linkname = kind, "/etc/shadow"
            archive.addfile(info)
        info, content = _one("deep/" * 30 + "Node.json")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    (tmp_path / "state.tar").write_bytes(file.getvalue())

    assert [node.name for node in read_saved([tmp_path / "state.tar"]).nodes] == ["a"]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archive_of_each_format_is_read(form: int, tmp_path: Path) -> None:
    named = _one("dump/" + "n" * (90 if form == tarfile.USTAR_FORMAT else 300) + ".json")
    (tmp_path / "state.tar").write_bytes(_tar(named, (tarfile.TarInfo("b.json"), _listed(node("b"))), form=form))

    assert [one.name for one in read_saved([tmp_path / "state.tar"]).nodes] == ["a", "b"]


# --- damage


def _bundle(tmp_path: Path, *objects: Any) -> Path:
    bundle, file = Bundle(), tmp_path / "state.tar.gz"
    for entry in objects:
        bundle.keep(entry["kind"], entry)
    bundle.write(file, NOW, {})
    return file


def _cut(raw: Packed) -> Packed:
    return raw[: raw.index(b"Pod.json") + 600]


def _without_end(raw: Packed) -> Packed:
    return raw.rstrip(b"\0") + b"\0" * (-len(raw.rstrip(b"\0")) % 512)


def _wrong_checksum(raw: Packed) -> Packed:
    return _with_header(raw, raw.index(b"Pod.json"), 108, b"9", sealed=False)


def _zeroed(raw: Packed) -> Packed:
    return _with_header(raw, raw.index(b"Pod.json"), 0, b"\0" * 512, sealed=False)


DAMAGES: dict[str, Callable[[Packed], Packed]] = {
    "cut in a file": lambda raw: gzip.compress(_cut(raw)),
    "cut between files": lambda raw: gzip.compress(raw[: raw.index(b"Pod.json")]),
    "without its end": lambda raw: gzip.compress(_without_end(raw)),
    "a wrong checksum": lambda raw: gzip.compress(_wrong_checksum(raw)),
    "a header of zeros": lambda raw: gzip.compress(_zeroed(raw)),
    "gzip cut": lambda raw: gzip.compress(raw)[:-40],
    "gzip's checksum": lambda raw: gzip.compress(raw)[:-8] + b"\0" * 8,
    "gzip's blocks": lambda raw: gzip.compress(raw, 0)[: -len(raw) // 3] + b"\xff" * (len(raw) // 3),
    "a file's JSON": lambda raw: gzip.compress(raw.replace(b'"kind":"Pod"', b'"kind"="Pod"', 1)),
    "not packed": _cut,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_archive_damage_is_reported(damage: Callable[[Packed], Packed], tmp_path: Path) -> None:
    file = _bundle(tmp_path, node("a", None), pod("x", 0, on="a"))
    assert _diagnosed(file)[0] == 0
    file.write_bytes(damage(gzip.decompress(file.read_bytes())))

    code, output = _diagnosed(file)

    unobserved = {load["kind"]: load["why"] for load in json.loads(output)["unobserved"]}
    assert code == 2
    assert str(file) in unobserved["saved state"]


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("member", ["snapshot.json", "Node.json"])
def test_archive_reports_each_wrong_byte_of_a_header(member: str, packed: bool, flip: int, tmp_path: Path) -> None:
    file = _bundle(tmp_path, node("a", None), pod("x", 0, on="a"))
    raw = gzip.decompress(file.read_bytes())
    for offset in range(512):
        damaged = _with_byte(raw, raw.index(member.encode()) + offset, flip)
        file.write_bytes(gzip.compress(damaged, 1) if packed else damaged)
        assert _is_reported(file), offset


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_bundle_reports_each_wrong_byte_of_its_gzip_head(flip: int, tmp_path: Path) -> None:
    file = _bundle(tmp_path, node("a", None), pod("x", 0, on="a"))
    raw = file.read_bytes()
    for place in (*range(12), *range(-8, 0)):
        file.write_bytes(_with_byte(raw, place % len(raw), flip))
        assert _is_reported(file), place


def test_bundle_is_a_valid_tar_archive(tmp_path: Path) -> None:
    file = _bundle(tmp_path, node("a", None), pod("x", 0, on="a"))
    assert not _is_reported(file)
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["snapshot.json", "Node.json", "Pod.json"]
    raw = gzip.decompress(file.read_bytes())
    for end in (b"\0 ", b" \0"):  # GNU tar, tar-stream
        file.write_bytes(_with_header(raw, 0, 154, end, sealed=False))
        assert not _is_reported(file)


def test_archive_names_damage_at_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "state.tar"
    file.write_bytes(_with_byte(PLAIN, 0, 1))
    code, output = _diagnosed(file)
    (unobserved,) = [row for row in json.loads(output)["unobserved"] if row["kind"] == "saved state"]
    assert (code, "damaged at its beginning: the checksum of a header is wrong" in unobserved["why"]) == (2, True)


def _with_byte(raw: Packed, place: int, flip: int) -> Packed:
    return raw[:place] + bytes((raw[place] ^ flip,)) + raw[place + 1 :]


def _is_reported(file: Path) -> bool:
    """Whether the file is refused, or read with a report of its damage: both are exit code 2."""
    try:
        return bool(read_saved([file]).unread)
    except SavedStateError:
        return True


def test_archive_content_before_damage_counts(tmp_path: Path) -> None:
    """The node's own verdict is a cause; the pods after it are not known, so that none of them is missed."""
    taint = {"key": "gpu-healthcheck.aws-samples.io/unhealthy", "value": "true", "effect": "NoSchedule"}
    labels = {"gpu-healthcheck.aws-samples.io/status": "fail", "gpu-healthcheck.aws-samples.io/severity": "REBOOT"}
    faulty = node("a", labels=labels, taints=[taint])
    file = _bundle(tmp_path, faulty, pod("x"))
    whole = _diagnosed(file)
    file.write_bytes(gzip.compress(_cut(gzip.decompress(file.read_bytes()))))

    code, output = _diagnosed(file)
    damaged = json.loads(output)

    assert (whole[0], code) == (1, 1)
    assert {entry["cause"] for entry in damaged["causes"]} <= {load["cause"] for load in json.loads(whole[1])["causes"]}
    assert damaged["causes"]
    assert {"Pod", "saved state"} <= {entry["kind"] for entry in damaged["unobserved"]}


def test_since_refuses_a_damaged_state(tmp_path: Path) -> None:
    file = _bundle(tmp_path, node("a"), pod("x"))
    (tmp_path / "old.tar.gz").write_bytes(file.read_bytes()[:-40])

    result = CliRunner().invoke(app, ["diagnose", "--from", str(file), "--since", str(tmp_path / "old.tar.gz")])

    assert result.exit_code == 2
    assert "damaged" in result.output


# --- cost of parsed JSON


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"kind":"List","items":[' + b"{}," * 3000 + b"{}]}", "over 2,000 values and keys"),
        (b'{"kind":"List","items":[' + b"[[]]," * 700 + b"{}]}", "over 2,000 values and keys"),
        (b'{"kind":"PodList","items":[' + b'{"a":1},' * 400 + b"{}]}", "over 300 objects"),
        (b'{"kind":"PodList"}' * 400, "over 300 objects"),
        (b'{"kind":"Pod","metadata":{"name":"' + b"x" * 5000 + b'"}}', "an object of over 0 MiB"),
        (b" " * 40_000 + b'{"kind":"PodList","items":[]}', "which is the limit for a file"),
        (b"[" * 1500, "not the JSON"),
        (b'{"a":' * 990, "not the JSON"),
        (b'{"kind":"Pod","x":' + b"9" * 5000 + b"}", "an object of over 0 MiB"),
        (b'{"kind":"Pod","x":' + b"9" * 3000 + b"e999999}", "not the JSON"),
        (b'{"kind":"Pod","x":"a\0b"}', "not the JSON"),
        (b'{"kind":"Pod","x":"\xff\xfe"}', "not the JSON"),
        (b'{"kind":"Pod","x":"\\ud800"}', "not the JSON"),
        (b'{"kind":"Pod","x":NaN}', "not the JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value[:12]),
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_saved_json_beyond_a_limit_is_refused(
    content: bytes,
    message: str,
    pack: Callable[[bytes], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("_MOST_VALUES", 2000), ("_MOST_OBJECTS", 300), ("_LONGEST_OBJECT", 4000), ("LONGEST", 32768)):
        monkeypatch.setattr(saved, name, value)
    file = tmp_path / "state.json"
    file.write_bytes(pack(content))

    code, output = _diagnosed(file)

    assert (code, output.count("\n")) == (2, 1), output
    assert message in output
    assert str(file) in output


def test_saved_limits_hold_for_all_files_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "_MOST_OBJECTS", 10)
    for number in range(3):
        (tmp_path / f"{number}.json").write_bytes(_listed(*(node(f"{number}-{value}") for value in range(4))))
    with pytest.raises(SavedStateError, match="over 10 objects"):
        read_saved([tmp_path])
    assert len(read_saved([tmp_path / "0.json", tmp_path / "1.json"]).nodes) == 8


def test_saved_utf_16_is_read(tmp_path: Path) -> None:
    """As `>` of PowerShell writes it."""
    (tmp_path / "state.json").write_text(_listed(node("a")).decode(), encoding="utf-16")
    assert [one.name for one in read_saved([tmp_path / "state.json"]).nodes] == ["a"]


# --- folders


def test_saved_folder_too_deep_is_refused(short_root: Path) -> None:
    deep = short_root
    for _ in range(60):
        deep /= "d"
    deep.mkdir(parents=True)

    code, output = _diagnosed(short_root)

    assert (code, output) == (
        2,
        f"gpu-healthcheck diagnose: {short_root}: folders more than 16 deep; a dump has three levels\n",
    )


def test_saved_folder_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "nodes.json").write_bytes(_listed(node("a")))
    os.mkfifo(tmp_path / "pipe.json")
    assert [one.name for one in read_saved([tmp_path]).nodes] == ["a"]


def test_saved_path_that_is_missing_is_a_usage_error(tmp_path: Path) -> None:
    assert _diagnosed(tmp_path / "none.json")[0] == 3
    assert _diagnosed(tmp_path)[0] == 3


# --- texts


def _many(line: str) -> str:
    return f"{line}\n" * 600


_HOSTILE_TEXTS = {
    "blanks": " " * 200_000 + "x",
    "columns": _many("Warning  " * 1500),
    "ages": _many("1m" * 4000 + "  Warning  Failed  pod/x  y"),
    "prompts": _many("x" * 200 + " " + "y" * 200),
    "quotes": _many("> " * 2000),
    "fences": _many("```") + "```" * 5000,
    "names": _many("Name: x\nNamespace: y\nNode: z"),
    "pods": _many("x 0/1 Running 0 1s"),
    "values": "Name: x\nNamespace: y\nContainers:\n" + _many("a: x" + " " * 4000 + "y"),
    "braces": _many("{"),
    "brackets": '{"kind":' + "[" * 50_000,
    "aliases": "apiVersion: v1\nkind: Pod\na: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "deep YAML": "apiVersion: v1\nkind: Pod\nx: " + "[" * 5000,
    "documents": _many("apiVersion: v1\nkind: [\n---"),
    "escapes": "\x1b[" * 100_000 + "\x1b]" * 100_000,
    "dates": _many("Name: x\nRoles: y\nCreationTimestamp: Mon, 31 Feb 9999 99:99:99 +9999"),
    "kernel": _many("NVRM: Xid (PCI:" + "0" * 3000),
}


@pytest.mark.parametrize("text", _HOSTILE_TEXTS.values(), ids=_HOSTILE_TEXTS)
def test_hostile_text_is_judged_or_refused_in_bounded_work(text: str, tmp_path: Path) -> None:
    """The time that a test may take is the bound: each of these needs minutes with one careless pattern."""
    file = tmp_path / "paste.txt"
    file.write_text(text)
    code, output = _diagnosed(file)
    assert code in (0, 1, 2)
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "name", ["x\x1b[2Jy", "a; rm -rf /", "../../etc", "a\u202eb", "n" * 5000, "", "5", "null", "[1]", "{a: b}"]
)
@pytest.mark.parametrize("place", ["name", "namespace", "nodeName", "kind", "resource"])
def test_hostile_value_of_a_text_stays_printable(place: str, name: str, tmp_path: Path) -> None:
    fields = {"name": "x", "namespace": "team", "nodeName": "a", "kind": "Pod", "resource": "nvidia.com/gpu"} | {
        place: name
    }
    text = (
        f"apiVersion: v1\nkind: {fields['kind']}\nmetadata:\n  name: {fields['name']}\n"
        f"  namespace: {fields['namespace']}\n"
        f"spec:\n  nodeName: {fields['nodeName']}\n  containers:\n  - name: main\n    resources:\n      limits:\n"
        f"        {fields['resource']}: 1\nstatus:\n  phase: Failed\n  reason: UnexpectedAdmissionError\n"
        f"---\nName: {fields['name']}\nNamespace: {fields['namespace']}\nNode: {fields['nodeName']}\nStatus: Failed\n"
        "Reason: UnexpectedAdmissionError\nContainers:\n  main:\n    Image: x\n    Limits:\n"
        f"      {fields['resource']}: 1\n"
    )
    file = tmp_path / "paste.txt"
    file.write_text(text)
    code, output = _diagnosed(file)
    assert code in (0, 1, 2)
    assert "\x1b" not in output
    assert "\u202e" not in output


def test_name_that_would_be_an_option_of_a_command_is_none(tmp_path: Path) -> None:
    lost = {"reason": "UnexpectedAdmissionError", "message": "Allocate failed due to GPU is lost, which is unexpected"}
    bare = pod("--all", 1, on="--all", namespace="-A", phase="Failed", status=lost)
    made = pod("-x", 1, on="--all", owner=("ReplicaSet", "--force"), phase="Failed", status=lost)
    (tmp_path / "state.json").write_bytes(_listed(bare, made, node("--all")))

    code, output = _diagnosed(tmp_path / "state.json")

    assert code == 1
    assert "cordon all`" in output
    assert not {"--all", "-A delete", "--force"} & {*output.split()}
    assert "cordon --" not in output
    assert "pod --" not in output


def test_node_name_is_quoted_in_commands_of_openshift() -> None:
    known = snapshot(node("a;reboot", runtime="cri-o://1.31.4", system="Red Hat Enterprise Linux CoreOS 418")).nodes[0]

    for step in (*crio_steps(known, None, ""), *list(runtime_steps(known))[:1]):
        assert "`oc debug 'node/a;reboot' -- chroot /host " in step
