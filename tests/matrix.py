"""`python -m tests.matrix [MINOR ...]`: our manifests, policies and programs on other versions of Kubernetes.

Each control plane is built from Go modules, once (minutes each), one after the other. Exit code: 1 where a test failed
or a control plane could not be built.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from gpu_healthcheck.sim.control_plane.build import minor_binaries, other_minors
from tools.go_programs.build import ProgramError

ROOT = Path(__file__).parents[1]
TESTS = (
    # Applied completely, and again by a server-side dry run; effects of roles and policies.
    "tests/cluster/test_manifests.py",
    "tests/cluster/test_quarantine_manifests.py",
    "tests/cluster/test_admission.py",
    "tests/cluster/test_sweeper_admission.py",
    "tests/cluster/test_sweep_job_admission.py",
    "tests/cluster/test_device_taints_admission.py",
    "tests/cluster/test_gate_policy.py",
    "tests/image/test_overlays.py",
    # Labels, taints, conditions, Events and Leases, written and removed: by an agent from a fault to its end, by hand,
    # and with other writers of the same lists.
    "tests/agent/test_real_cluster.py",
    "tests/agent/node/test_conditions.py",
    "tests/agent/node/test_device_taints.py",
    "tests/cluster/test_uninstall.py",
    # A sweep, with the scheduler and claimed devices too; a quarantine run.
    "tests/sweeper/test_story.py::test_1_finding_of_a_sweep_is_tainted_by_the_agent_and_kept_by_light_cycles",
    "tests/sweeper/test_dra.py",
    "tests/quarantine/test_job.py::test_from_a_fault_over_a_run_that_passes_back_into_service",
    # Messages of this version's scheduler and admission about waiting pods, and the listed kinds.
    "tests/diagnosis/test_real_scheduler.py",
    "tests/diagnosis/test_real_dry_run.py",
    "tests/diagnosis/test_live.py",
)
_PYTEST = ("-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup")
_SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] \S+ (.*)$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__.splitlines()[0])
    parser.add_argument(
        "minors", nargs="*", metavar="MINOR", help=f"some of {', '.join(other_minors())}; all by default"
    )
    passed = [_try(minor) for minor in parser.parse_args().minors or other_minors()]
    return 0 if all(passed) else 1


def _try(minor: str) -> bool:
    """Whether all tests passed on that version; prints their number, and the untested parts."""
    try:
        assets = minor_binaries(minor)
    except ProgramError as error:
        print(f"Kubernetes {minor:<8} not built: {error}", flush=True)
        return False
    version = assets.name.partition("-")[0]
    environment = os.environ | {"KUBEBUILDER_ASSETS": str(assets)}
    command = [sys.executable, *_PYTEST, *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stdout[-20000:], file=sys.stderr, flush=True)
    word = "fails" if done.returncode else "works"
    print(f"Kubernetes {version:<8} {word}: {_counted(done.stdout)}", flush=True)
    for reason, number in _left_out(done.stdout).items():
        print(f"  {number:>3} {reason}", flush=True)
    return done.returncode == 0


def _counted(message: str) -> str:
    """Return pytest's last line, such as '412 passed, 3 skipped in 301.22s (0:05:01)'."""
    return message.strip().splitlines()[-1] if message.strip() else "no test ran"


def _left_out(message: str) -> Counter[str]:
    numbers: Counter[str] = Counter()
    for number, reason in _SKIPPED.findall(message):
        numbers[reason] += int(number)
    return numbers


if __name__ == "__main__":
    sys.exit(main())
