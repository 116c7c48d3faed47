"""CRI-O's files, put together in its order (crio.conf(5), crio.conf.d(5))."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthcheck.probes.container_runtime.crio import CDI_FOLDERS, STANDARD_FILE, read_configuration
from healthcheck.probes.container_runtime.facts import CRIO, Handler, RuntimeConfiguration

NVIDIA = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\nruntime_type = "oci"\n'


def read(root: Path, files: dict[str, str | bytes], version: str = "1.34.0") -> RuntimeConfiguration:
    for name, text in files.items():
        file = root / "etc/crio" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_configuration(root, version=version)


def test_without_any_file_it_has_its_own_runtime(tmp_path: Path) -> None:
    assert read(tmp_path, {}) == RuntimeConfiguration(
        STANDARD_FILE,
        CRIO,
        "1.34.0",
        schema=0,
        handlers=(Handler("crun", "oci", "crun", None, ""),),
        default="crun",
        cdi=True,
        cdi_folders=CDI_FOLDERS,
        systemd_cgroup=True,
    )


@pytest.mark.parametrize(("version", "own"), [("1.30.9", "runc"), ("1.31.0", "crun"), ("", "crun"), ("x", "crun")])
def test_its_own_runtime_depends_on_its_version(version: str, own: str, tmp_path: Path) -> None:
    assert read(tmp_path, {}, version).default == own


def test_the_last_file_counts_whatever_it_is_called(tmp_path: Path) -> None:
    seen = read(
        tmp_path,
        {
            "crio.conf": '[crio.runtime]\ndefault_runtime = "a"\ncgroup_manager = "cgroupfs"\n'
            '[crio.api]\nlisten = "/l"\n',
            "crio.conf.d/10-b": '[crio.runtime]\ndefault_runtime = "b"\n' + NVIDIA,
            "crio.conf.d/20/c.txt": '[crio.runtime]\ncdi_spec_dirs = ["/opt/cdi"]\n[crio.runtime.runtimes.b]\n',
            "crio.conf.d/5": '[crio.runtime]\ndefault_runtime = "nvidia"\n',
        },
    )

    assert [file.path.rpartition("/")[2] for file in seen.files] == ["crio.conf", "10-b", "c.txt", "5"]
    assert (seen.default, seen.systemd_cgroup, seen.cdi_folders) == ("nvidia", False, ("/opt/cdi",))
    assert seen.default_in == "/etc/crio/crio.conf.d/5"
    assert seen.address == "/l"
    assert [(handler.name, handler.file[10:], handler.line) for handler in seen.handlers] == [
        ("crun", "", 0),
        ("nvidia", "crio.conf.d/10-b", 3),
        ("b", "crio.conf.d/20/c.txt", 3),
    ]


def test_a_later_table_of_a_runtime_takes_the_place_of_the_earlier(tmp_path: Path) -> None:
    again = "[crio.runtime.runtimes.nvidia]\nprivileged_without_host_devices = true\n"
    seen = read(tmp_path, {"crio.conf": NVIDIA, "crio.conf.d/a": again})

    nvidia = next(handler for handler in seen.handlers if handler.name == "nvidia")
    assert (nvidia.binary, nvidia.privileged_without_host_devices) == ("nvidia", True)


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ('[crio]\nroot = "a\n', "Illegal character", (2, 10)),
        ("[crio.runtime.runtimes.nvidia\n", "Expected ']'", (1, 30)),
        (b"[crio]\n# \xff\n", "no UTF-8", (2, 3)),
        ("crio = 1\n", "crio is not a table", (1, 0)),
        ("[crio.runtime.runtimes]\nx = 1\n", "x is not a table", (2, 0)),
        ("[crio.runtime.runtimes.x]\nruntime_path = 1\n", "runtime_path is not a string", (2, 0)),
        ("[crio.runtime]\ncdi_spec_dirs = 1\n", "cdi_spec_dirs is not a list of strings", (2, 0)),
    ],
)
@pytest.mark.parametrize("file", ["crio.conf", "crio.conf.d/99-nvidia.conf"])
def test_a_value_that_crio_rejects_is_reported_with_its_line(
    file: str, text: str | bytes, message: str, place: tuple[int, int], tmp_path: Path
) -> None:
    problem = read(tmp_path, {file: text}).problem

    assert problem is not None
    assert problem.file == f"/etc/crio/{file}"
    assert message in problem.message
    assert ((problem.line, problem.column), problem.only_ours) == (place, False)


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "etc/crio/crio.conf.d").mkdir(parents=True)
    (tmp_path / "etc/crio/crio.conf.d/a").symlink_to("/nowhere")

    for configuration in (read_configuration(tmp_path, "/etc/other.conf"), read_configuration(tmp_path)):
        assert configuration.problem is not None
        assert configuration.problem.message == "named, but does not exist"


def test_a_drop_in_outside_the_read_folders_is_reported_and_ignored(tmp_path: Path) -> None:
    seen = read(tmp_path, {"crio.conf.d/10-crio.conf": "", "conf.d/99-nvidia.toml": NVIDIA, "conf.d/a": "x = ["})

    assert [handler.name for handler in seen.handlers] == ["crun"]
    assert [(handler.name, handler.file, handler.line) for handler in seen.unread_handlers] == [
        ("nvidia", "/etc/crio/conf.d/99-nvidia.toml", 1)
    ]


def test_a_configured_crio_folder_is_read(tmp_path: Path) -> None:
    read(tmp_path, {"conf.d/99-nvidia.toml": NVIDIA})
    seen = read_configuration(tmp_path, folder="/etc/crio/conf.d")

    assert ([handler.name for handler in seen.handlers], seen.unread_handlers) == (["crun", "nvidia"], ())


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "x = 1\n" * 400_000, "a" * 5000, "x = " + "9" * 5000])
def test_what_only_we_cannot_read_is_no_fault(text: str, tmp_path: Path) -> None:
    problem = read(tmp_path, {"crio.conf": text}).problem

    assert problem is not None
    assert problem.only_ours


def test_comments_and_other_words_define_nothing(tmp_path: Path) -> None:
    text = "# [crio.runtime.runtimes.nvidia]\n[crio.image]\npause_image = 'nvidia/pause'\n"

    assert [handler.name for handler in read(tmp_path, {"crio.conf": text}).handlers] == ["crun"]
