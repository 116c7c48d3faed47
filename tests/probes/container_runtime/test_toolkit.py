"""The configuration of NVIDIA's runtime program, as it lies on a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.probes.container_runtime.facts import ConfigurationProblem, Toolkit
from gpu_healthcheck.healthcheck.probes.container_runtime.toolkit import OPERATORS_FILE, STANDARD_FILE, read_toolkit

OPERATORS, HOSTS = "/usr/local/nvidia/toolkit/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime"
DEFAULT = """
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"

[nvidia-container-cli]
environment = []
ldconfig = "@/sbin/ldconfig.real"
load-kmods = true
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
"""


def put(root: Path, path: str, text: str = "") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def read(root: Path, text: str) -> Toolkit:
    put(root, STANDARD_FILE, text)
    found = read_toolkit(root)
    assert found is not None
    return found


def test_what_the_package_installs_is_read(tmp_path: Path) -> None:
    put(tmp_path, "/sbin/ldconfig")
    assert read(tmp_path, DEFAULT) == Toolkit(STANDARD_FILE, "auto", "", "@/sbin/ldconfig.real")


def test_without_a_file_there_is_none(tmp_path: Path) -> None:
    assert read_toolkit(tmp_path) is None


@pytest.mark.parametrize(
    ("programs", "file"),
    [
        ((), OPERATORS_FILE),
        (("",), OPERATORS_FILE),
        ((HOSTS,), STANDARD_FILE),
        ((OPERATORS,), OPERATORS_FILE),
        ((HOSTS, OPERATORS), OPERATORS_FILE),
    ],
)
def test_the_program_decides_the_file_that_is_read(programs: tuple[str, ...], file: str, tmp_path: Path) -> None:
    put(tmp_path, STANDARD_FILE, 'nvidia-container-runtime = {mode = "legacy"}')
    put(tmp_path, OPERATORS_FILE, 'nvidia-container-runtime = {mode = "cdi"}')

    found = read_toolkit(tmp_path, programs)

    assert found is not None
    assert found.path == file


def test_the_standard_one_is_read_where_the_operator_has_none(tmp_path: Path) -> None:
    put(tmp_path, STANDARD_FILE)
    assert read_toolkit(tmp_path) == Toolkit(STANDARD_FILE)
    assert read_toolkit(tmp_path, [OPERATORS]) is None


@pytest.mark.parametrize(
    ("there", "ldconfig", "missing"),
    [
        ("/sbin/ldconfig", "@/sbin/ldconfig", ()),
        ("/sbin/ldconfig.real", "@/sbin/ldconfig", ()),
        ("/sbin/ldconfig", "@/sbin/ldconfig.real", ()),
        ("/sbin/other", "@/sbin/ldconfig.real", ("/sbin/ldconfig.real",)),
        # Without the @ it is the container's own; of a folder that a captured tree lacks nothing is known.
        ("/sbin/other", "/sbin/ldconfig", ()),
        ("/usr/x", "@/sbin/ldconfig", ()),
    ],
)
def test_ldconfig_counts_with_and_without_real(
    there: str, ldconfig: str, missing: tuple[str, ...], tmp_path: Path
) -> None:
    put(tmp_path, there)
    assert read(tmp_path, f'[nvidia-container-cli]\nldconfig = "{ldconfig}"').missing == missing


def test_a_driver_root_that_is_not_there_is_missed(tmp_path: Path) -> None:
    put(tmp_path, "/run/other")
    text = '[nvidia-container-cli]\nroot = "/run/nvidia/driver"'
    assert read(tmp_path, text).missing == ("/run/nvidia/driver",)

    put(tmp_path, "/run/nvidia/driver/lib")
    assert read(tmp_path, text).missing == ()
    assert read(tmp_path, '[nvidia-container-cli]\nroot = "/"').missing == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[nvidia-container-runtime]\nmode = auto\n", ConfigurationProblem(STANDARD_FILE, "Invalid value", 2, 8)),
        ("[nvidia-container-runtime]\nmode = 7\n", ConfigurationProblem(STANDARD_FILE, "mode is not a string")),
        (
            "nvidia-container-cli = 7\n",
            ConfigurationProblem(STANDARD_FILE, "nvidia-container-cli is not a table"),
        ),
        (
            "\naccept-nvidia-visible-devices-as-volume-mounts = 1\n",
            ConfigurationProblem(STANDARD_FILE, "accept-nvidia-visible-devices-as-volume-mounts is not true or false"),
        ),
    ],
)
def test_invalid_value_is_reported(text: str, problem: ConfigurationProblem, tmp_path: Path) -> None:
    assert read(tmp_path, text).problem == problem


def test_a_path_without_a_readable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / STANDARD_FILE.lstrip("/")).mkdir(parents=True)
    found = read_toolkit(tmp_path)
    assert found is not None
    assert found.problem is not None
    assert found.problem.only_ours


ODD = ["nvidia-container-runtime = []", "[nvidia-container-cli]\nroot = {}"]


@given(text=st.text(max_size=64) | st.sampled_from(ODD))
def test_anything_is_read(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert read(tmp_path_factory.mktemp("any"), text.encode(errors="replace").decode()).path == STANDARD_FILE
