"""Input of the hardware probes, broken in any way: it is judged, or rejected properly."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.captures import evidence_file
from gpu_healthcheck.healthcheck.captures.evidence_file import EvidenceCycle, EvidenceError
from gpu_healthcheck.healthcheck.catalog.profiles import ProfileError, find_profile, parse_profiles
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.model import Evidence, Host, Now, ProbeError
from gpu_healthcheck.healthcheck.probes.efa.infiniband import ERROR_COUNTERS, KEEP_ALIVES, RDMA, Rdma, read_rdma
from gpu_healthcheck.healthcheck.probes.nvml.answer import read_answer
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading
from gpu_healthcheck.healthcheck.probes.services import SERVICES, read_services
from tests.checks.any_facts import any_facts_are_judged
from tests.checks.evidence import P5
from tests.checks.test_no_false_fault import healthy
from tests.examples import MONOTONIC, WALL
from tests.fuzz.damage import damaged, forge

Damage = tuple[int, int, bytes]
Forgery = tuple[list[int], Any, bool]
"""Where, what is put there, and whether it is rather left out."""


def an_answer_is_read_or_makes_no_sense(forgeries: Sequence[Forgery], damages: Sequence[Damage]) -> None:
    node = healthy("p5.48xlarge")
    content = json.loads(node.line)
    for forgery in forgeries:
        forge(content, *forgery)
    answer = read_answer(damaged(json.dumps(content).encode(), damages))
    any_facts_are_judged(Evidence({**node.seen, NVML: DriverReading(answer.gpus)}), node.expected)


def any_bytes_are_an_answer(line: bytes) -> None:
    assert read_answer(line).answered_by_driver in (True, False)


def a_file_of_evidence_is_judged_or_refused(forgeries: Sequence[Forgery], damages: Sequence[Damage]) -> None:
    content = json.loads(_evidence())
    for forgery in forgeries:
        forge(content, *forgery)
    try:
        look = evidence_file.read(damaged(json.dumps(content).encode(), damages))
    except EvidenceError:
        return
    for check in look.checks:
        if not any(look.evidence.unread(probe) for probe in check.needs):
            list(check.judge(look.evidence, look.expected))


@cache
def _evidence() -> bytes:
    """Of two looks at a healthy node."""
    node = healthy("g6.xlarge")
    evidence = Evidence(node.seen, MONOTONIC, Evidence(node.seen, MONOTONIC - 10))
    look = EvidenceCycle("node", "ec2", "boot", Now(WALL, MONOTONIC), CHECKS, node.expected, 86400.0, evidence)
    with tempfile.TemporaryDirectory() as folder:
        evidence_file.write(Path(folder) / "evidence", look)
        return (Path(folder) / "evidence").read_bytes()


def any_proc_and_log_are_read(comm: bytes, stat: bytes, uptime: bytes, kthreadd: bytes, log: bytes) -> None:
    node = healthy("p5.48xlarge")
    with tempfile.TemporaryDirectory() as folder:
        _write(
            Path(folder),
            {
                "proc/4711/comm": comm,
                "proc/4711/stat": stat,
                "proc/uptime": uptime,
                "proc/2/comm": kthreadd,
                "var/log/fabricmanager.log": log,
            },
        )
        try:
            services = read_services(Host(Path(folder)))
        except ProbeError:
            return
    any_facts_are_judged(Evidence({**node.seen, SERVICES: services}), node.expected)


def any_counters_have_a_rate(before: dict[str, bytes], now: dict[str, bytes], seconds: float) -> None:
    node = healthy("p5.48xlarge")
    old, new = (_rdma(counters) for counters in (before, now))
    earlier = Evidence({**node.seen, RDMA: old}, MONOTONIC)
    any_facts_are_judged(Evidence({**node.seen, RDMA: new}, MONOTONIC + seconds, earlier), P5)


def _rdma(counters: dict[str, bytes]) -> Rdma:
    device = "sys/class/infiniband/rdmap16s0"
    folders = dict.fromkeys(ERROR_COUNTERS, f"{device}/ports/1/hw_counters")
    folders[KEEP_ALIVES] = f"{device}/hw_counters"
    with tempfile.TemporaryDirectory() as folder:
        files = {f"{folders[name]}/{name}": content for name, content in counters.items()}
        _write(Path(folder), {f"{device}/device/vendor": b"0x1d0f\n", **files})
        return read_rdma(Host(Path(folder)))


def any_table_is_read_or_refused(text: str) -> None:
    try:
        profiles = parse_profiles(text)
    except ProfileError:
        return
    assert all(find_profile(profiles, f"ml.{name}") is profile for name, profile in profiles.items())


def _write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


_numbers = st.integers(-1, 2**65).map(lambda number: b"%d\n" % number)
counters = st.dictionaries(st.sampled_from([KEEP_ALIVES, *ERROR_COUNTERS]), _numbers | st.binary(max_size=80))
comms = st.sampled_from([b"nv-fabricmanage\n", b"nvidia-imex\n", b""]) | st.binary(max_size=20)
stats = st.binary(max_size=80) | st.builds(
    lambda name, rest: b"4711 (" + name + b") S " + b" ".join(rest),
    st.binary(max_size=15),
    st.lists(_numbers, max_size=22),
)
uptimes = st.sampled_from([b"8000.00 1.00\n", b"0.00 0\n"]) | st.binary(max_size=40)
_versions = st.from_regex(rb"[0-9.]{0,80}", fullmatch=True)
logs = st.binary(max_size=200) | st.lists(
    st.builds(lambda version: b"[INFO] Fabric Manager version " + version + b" is running with\n", _versions)
    | st.builds(
        lambda one, other: b"driver interface version " + one + b" don't match with driver version " + other + b"\n",
        _versions,
        _versions,
    ),
    max_size=4,
).map(b"".join)
_fields = st.sampled_from(["p5.48xlarge", "ml.p5.48xlarge", "8", "-1", "true", "false", "efa", "-", "", " 32 ", "#"])
tables = st.text(max_size=80) | st.lists(
    st.lists(_fields | st.text(max_size=10), min_size=4, max_size=6).map("|".join), max_size=6
).map("\n".join)
