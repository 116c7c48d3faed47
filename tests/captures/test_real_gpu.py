"""Evidence of a healthy H200 with driver 580.159.04 in a virtual machine, where programs failed on purpose.

`check --save-evidence` wrote it. Serial number, UUID, names and boot id are replaced, and lines of the kernel log that
do not concern the GPU are left out.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from gpu_healthcheck.cli.judged_cycle import judged
from gpu_healthcheck.healthcheck.captures import evidence_file
from gpu_healthcheck.healthcheck.model import Evidence, Severity, Status
from gpu_healthcheck.healthcheck.probes import kernel_log

EVIDENCE = (Path(__file__).with_name("h200") / "evidence.json").read_bytes()


def test_failing_programs_are_no_fault_of_the_gpu() -> None:
    verdict = judged(evidence_file.read(EVIDENCE)).verdict

    found = {finding.finding.reason for finding in verdict.active}
    assert found == {"Xid31", "Xid31Repeated", "Xid13", "Xid13Repeated"}
    assert (verdict.status, verdict.severity, verdict.unobserved) == (Status.WARN, Severity.MONITOR, ())


def test_evidence_without_failing_programs_passes() -> None:
    cycle = evidence_file.read(EVIDENCE)
    seen = {probe: cycle.evidence[probe] for probe in cycle.evidence.probes}
    seen[kernel_log.RING] = tuple(record for record in seen[kernel_log.RING] if "Xid" not in record.text)
    quiet = replace(cycle, evidence=Evidence(seen, cycle.evidence.at))

    assert (judged(quiet).verdict.status, judged(quiet).verdict.active) == (Status.PASS, ())
