"""The Dockerfile against its sources. tests/node builds it and runs the result."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_healthcheck import healthcheck

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
ARGUMENTS = dict(re.findall(r'^ARG (\w+)="?([^"\n]*)"?$', DOCKERFILE, re.MULTILINE))
STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)

# Load the parts that the image runs, and print their dependencies. The agent, which loads less, is last.
LOADED = """
import sys
import grpc, google.protobuf.json_format, google.protobuf.message_factory
from gpu_healthcheck.healthcheck.host import grpc_child
import pynvml, gpu_healthcheck.cli.__main__, gpu_healthcheck.agent.process.agent_program
import gpu_healthcheck.healthcheck.cluster.client, gpu_healthcheck.healthcheck.probes.nvml.child
for name, module in sys.modules.items():
    print(name, getattr(module, "__file__", None))
"""


def test_dockerfile_version_is_the_package_version() -> None:
    assert ARGUMENTS["VERSION"] == healthcheck.__version__


def test_dockerfile_ends_with_full_and_builds_slim_without_dcgm() -> None:
    names = [name for _, name in STAGES]

    assert names[-1] == "full"
    assert names[: names.index("slim") + 1] == ["build", "slim"]  # a builder that skips nothing needs no DCGM for it


@pytest.mark.parametrize("image", ["PYTHON_IMAGE", "DCGM_IMAGE"])
def test_dockerfile_base_has_a_full_name_and_tag(image: str) -> None:
    assert re.fullmatch(r"[a-z0-9.-]+\.[a-z]+(/[a-z0-9-]+)+:[0-9][\w.-]+(@sha256:[0-9a-f]{64})?", ARGUMENTS[image])


def test_dockerfile_pins_the_efa_installer() -> None:
    assert re.fullmatch(r"1\.\d+\.\d+", ARGUMENTS["EFA_INSTALLER_VERSION"])
    assert re.fullmatch(r"[0-9a-f]{64}", ARGUMENTS["EFA_INSTALLER_SHA256"])


def test_dockerfile_targets_have_equal_labels_and_settings() -> None:
    slim, full = (DOCKERFILE.partition(f" AS {name}\n")[2].partition("\nFROM ")[0] for name in ("slim", "full"))

    labels = [re.findall(r"org\.opencontainers\.image\.(\w+)=", stage) for stage in (slim, full)]
    assert labels[0] == labels[1] == ["title", "description", "version", "revision", "source", "licenses"]
    for line in ('ENTRYPOINT []\nCMD ["gpu-healthcheck", "agent"]\n', "WORKDIR /tmp\n"):
        assert (line in slim, line in full) == (True, True)


def test_dockerfile_names_no_architecture() -> None:
    assert re.findall(r"x86_64|aarch64|amd64|arm64|<<", DOCKERFILE) == []


def test_dockerignore_allows_all_copied_files() -> None:
    copied = [
        word for words in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE) for word in words.split()[:-1]
    ]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert sorted(set(copied)) == sorted(allowed)
    assert [name for name in copied if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("file", ["product.txt", "build.txt"])
def test_requirements_are_locked_with_hashes(file: str) -> None:
    text = (ROOT / "requirements" / file).read_text()

    for package in re.findall(r"^\w.*?(?=^\w|\Z)", text, re.MULTILINE | re.DOTALL):
        assert re.match(r"[\w.-]+==\S+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+", package), package


def test_product_loads_no_module_that_the_image_omits() -> None:
    """In a process of its own: other tests load more."""
    printed = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = dict(line.split(" ", 1) for line in printed.stdout.splitlines())
    (uninstalled,) = re.findall(r"uninstall --yes --quiet \\\n(.*?) \\\n", DOCKERFILE)
    packages = {name.replace("-", "_") for name in uninstalled.split()}

    generated = re.compile(r"/kubernetes/(aio/|client/(api|models)/(?!__init__\.py$))")
    assert [name for name, file in loaded.items() if generated.search(file)] == []
    assert {name.partition(".")[0] for name in loaded} & packages == set()
