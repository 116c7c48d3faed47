"""`python -m tests.matrix [MINOR ...]`: our manifests, policies and programs on other versions of Kubernetes.

Each control plane is built from Go modules, once (minutes each), one after the other. Exit code: 1 where a test failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sim.control_plane.build import ControlPlaneError, minor_binaries, other_minors

ROOT = Path(__file__).parents[1]
TESTS = (
    # Applied whole, and once more by a server-side dry run; what roles give, and what policies let through.
    "tests/cluster/test_manifests.py",
    "tests/cluster/test_quarantine_manifests.py",
    "tests/cluster/test_admission.py",
    "tests/cluster/test_sweeper_admission.py",
    "tests/cluster/test_sweep_job_admission.py",
    # An agent from a fault to its end, a sweep, a quarantine run.
    "tests/agent/test_real_cluster.py::test_that",
    "tests/sweeper/test_story.py::test_1_what_a_sweep_found_is_tainted_by_the_agent_and_cleared_by_no_light_pass",
    "tests/quarantine/test_job.py::test_from_a_fault_over_a_run_that_passes_back_into_service",
)


@dataclass(frozen=True)
class Tried:
    """What came of one version: the last line of the tests, or why there were none."""

    version: str
    passed: bool
    said: str
    seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__.splitlines()[0])
    parser.add_argument(
        "minors", nargs="*", metavar="MINOR", help=f"some of {', '.join(other_minors())}; all by default"
    )
    tried = [_try(minor) for minor in parser.parse_args().minors or other_minors()]
    _show(tried)
    return 0 if all(one.passed for one in tried) else 1


def _try(minor: str) -> Tried:
    try:
        assets = minor_binaries(minor)
    except ControlPlaneError as error:
        return Tried(minor, passed=False, said=str(error)[-200:])
    version = assets.name.partition("-")[0]
    print(f"Kubernetes {version} …", file=sys.stderr, flush=True)
    began = time.monotonic()
    environment = os.environ | {"KUBEBUILDER_ASSETS": str(assets)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stdout[-6000:], file=sys.stderr)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no test ran"
    return Tried(version, done.returncode == 0, last, time.monotonic() - began)


def _show(tried: list[Tried]) -> None:
    table = Table("Kubernetes", "", "tests", "seconds")
    for one in tried:
        table.add_row(one.version, "works" if one.passed else "[red]fails[/]", one.said, f"{one.seconds:.0f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    sys.exit(main())
