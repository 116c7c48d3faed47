"""Messages of the driver mlx5, as Linux 4.15 to 6.17 write them, and what only looks like them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.mlx5_messages import CHECK, NOT_COUNTED_YET, read_message
from gpu_healthcheck.healthcheck.memory import reason_names
from gpu_healthcheck.healthcheck.model import KernelEvent, Severity
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware, RdmaPort
from gpu_healthcheck.healthcheck.probes.kernel_log import Record

COUNTED = Expectation(first=EarlierHardware(rdma={"0000:5e:00.0": RdmaPort("mlx5_3", "", 400.0)}))
MESSAGES = {
    "mlx5_core 0000:5e:00.0: print_health_info:429:(pid 0): Health issue observed, unrecoverable hardware error, "
    "severity(3) ERROR:": "Mlx5Unrecoverable",
    "mlx5_core 0000:5e:00.0: print_health_info:441:(pid 0): synd 0x8: unrecoverable hardware error": (
        "Mlx5Unrecoverable"
    ),
    "mlx5_core 0000:5e:00.0: synd 0x8: unrecoverable hardware error": "Mlx5Unrecoverable",
    "mlx5_core 0000:5e:00.0: mlx5_health_try_recover:335:(pid 3112): health recovery failed": "Mlx5Unrecoverable",
    "mlx5_core 0000:5e:00.0: mlx5_health_try_recover:330:(pid 9): health recovery flow aborted, PCI reads still not "
    "working": "Mlx5Unrecoverable",
    "mlx5_core 0000:5e:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count": (
        "Mlx5NotResponding"
    ),
    "mlx5_core 0000:5e:00.0: poll_health:174: device's health compromised - reached miss count.": "Mlx5NotResponding",
    "mlx5_core 0000:5e:00.0: wait_func:1195:(pid 1967079): ENABLE_HCA(0x104) timeout. Will cause a leak of a command "
    "resource": "Mlx5NotResponding",
    "mlx5_core 0000:5e:00.0: 0000:5e:00.0:wait_func:882:(pid 9): MANAGE_PAGES(0x108) timeout. Will cause a leak of a "
    "command resource": "Mlx5NotResponding",
    "mlx5_core 0000:5e:00.0: cb_timeout_handler:877:(pid 4): cmd[0]: CREATE_MKEY(0x200) Async, timeout. Will cause a "
    "leak of a command resource": "Mlx5NotResponding",
    "mlx5_core 0000:5e:00.0: probe_one:1764:(pid 17): mlx5_init_one failed with error code -16": "Mlx5NotResponding",
    "mlx5_core 0000:5e:00.0: mlx5_load_one failed with error code -22": "Mlx5NotResponding",
    "mlx5_core 0000:5e:00.0 enp94s0np0: TX timeout detected": "Mlx5NotResponding",
    "mlx5_core 0000:5e:00.0: poll_health:802:(pid 0): Fatal error 3 detected": "Mlx5NotResponding",
    "mlx5_core 0000:5e:00.0: health recovery succeeded": "Mlx5Recovered",
    "mlx5_core 0000:5e:00.0: mlx5_health_try_recover:339:(pid 9): health revovery succeded": "Mlx5Recovered",
    "mlx5_core 0000:5e:00.0 enp94s0np0: Link down": "Mlx5LinkDown",
    "mlx5_core 0000:5e:00.0 enp94s0np0: Link up": "Mlx5LinkUp",
}
OTHERS = [
    "mlx5_core 0000:5e:00.0: firmware version: 28.39.2048",
    "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
    "mlx5_core 0000:5e:00.0: starting health recovery flow",
    "mlx5_core 0000:5e:00.0: mlx5_pcie_event:297:(pid 11): PCIe slot power capability was not advert",
    "mlx5_core 0000:5e:00.0: wait_fw_init:199:(pid 17): Waiting for FW initialization, timeout abort in 39s",
    "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:835:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status bad op",
    "mlx5_core 0000:5e:00.0 enp94s0np0: TX timeout detected by a test",
    "mlx5_core 0000:[312]: segfault at 0 ip health recovery failed",
    "mlx5_core 0000:5e:00.0: job said: health recovery failed",
    "mlx5_core 0000:5e:00.0: health recovery failed, says the operator",
    "mlx5_core: INFO: synd 0x8: unrecoverable hardware error.",
    "xsc_core 0000:5e:00.0: health recovery failed",
    "mlx5_core 0000:5e:00.0: synd 0x1: firmware internal error",
    "mlx5_core 0000:5e:00.0: " + "a" * 65_000,
    "",
]


def read(text: str, expected: Expectation = COUNTED) -> KernelEvent | None:
    return read_message(Record(7, 12.5, 0, text), expected)


@pytest.mark.parametrize(("text", "reason"), MESSAGES.items())
def test_each_form_of_a_message(text: str, reason: str) -> None:
    event = read(text)
    assert event is not None
    assert (event.reason, event.subject) == (reason, "rdma/mlx5_3")
    assert text.startswith(CHECK.begins)


@pytest.mark.parametrize("text", OTHERS)
def test_other_lines_are_no_message(text: str) -> None:
    assert read(text) is None


FATAL = next(iter(MESSAGES))


@pytest.mark.parametrize(
    ("expected", "severity", "rule", "subject"),
    [
        (COUNTED, Severity.REBOOT, "Mlx5Unrecoverable", "rdma/mlx5_3"),
        (Expectation(), Severity.MONITOR, NOT_COUNTED_YET, "rdma/0000:5e:00.0"),
        (Expectation(is_capture=True), Severity.REBOOT, "Mlx5Unrecoverable", "rdma/0000:5e:00.0"),
    ],
)
def test_only_a_device_of_the_fabric_is_a_finding(
    expected: Expectation, severity: Severity, rule: str, subject: str
) -> None:
    event = read(FATAL, expected)
    assert event is not None
    assert event.finding is not None
    assert (event.finding.severity, event.finding.rule, event.finding.subject) == (severity, rule, subject)


def test_a_message_about_another_device_is_only_counted() -> None:
    event = read(FATAL, replace(COUNTED, first=EarlierHardware(rdma={})))
    assert event is not None
    assert event.finding is None


def test_memory_names_the_reasons_of_this_check() -> None:
    assert (CHECK.name, NOT_COUNTED_YET) == (reason_names.MLX5_MESSAGES, reason_names.NOT_COUNTED_YET)
    names = {read(text).reason for text in MESSAGES if read(text)}  # type: ignore[union-attr]
    faults = {reason_names.MLX5_UNRECOVERABLE, reason_names.MLX5_NOT_RESPONDING}
    assert faults | {reason_names.MLX5_RECOVERED, *reason_names.MLX5_LINKS} <= names
