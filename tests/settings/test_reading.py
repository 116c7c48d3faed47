"""The ConfigMap's files, the environment and the defaults; and every value that is not allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.model import Severity
from gpu_healthcheck.healthcheck.node.state import HARDWARE_READY, REBOOT_REQUIRED
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings, by_key, settings_of
from gpu_healthcheck.healthcheck.settings.reading import BadValue, UnknownKeys, read_settings, unknown_keys
from gpu_healthcheck.healthcheck.verdict.repair_conditions import RepairPolicy
from gpu_healthcheck.healthcheck.verdict.taint_decision import Rules

SECONDS = "a whole number of seconds, "
GROUPS = "allowed are 0, 2, 3, 7, 8, 9, 0-nvidia-smi, 2-efa-enumeration, 3-topology-check, 7-container-runtime, 8-hami"
SEVERITIES = "allowed are MONITOR, RESET, REBOOT or ISOLATE"


def names_in(group: str) -> list[str]:
    return [check.name for check in CHECKS if check.group == group]


GROUP_0, GROUP_2, GROUP_3 = map(names_in, ("0-nvidia-smi", "2-efa-enumeration", "3-topology-check"))
GROUP_7, GROUP_8, GROUP_9 = map(names_in, ("7-container-runtime", "8-hami", "9-roce"))


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in settings_of(NodeSettings):
        monkeypatch.delenv(key, raising=False)


def write(directory: Path, **values: str | bytes) -> Path:
    for key, value in values.items():
        (directory / key).write_bytes(value if isinstance(value, bytes) else value.encode())
    return directory


def refused(directory: Path | None) -> tuple[BadValue, ...]:
    """Return the invalid values; their defaults are in force."""
    settings = read_settings(directory)
    known = settings_of(NodeSettings)
    keys = [value.key for value in settings.bad if value.key in known]
    assert [by_key(settings.values)[key] for key in keys] == [known[key].default for key in keys]
    return settings.bad


@pytest.mark.parametrize("directory", [None, Path("/nowhere"), Path("/dev/null")])
def test_without_any_configuration_the_documented_defaults_hold(directory: Path | None) -> None:
    values = read_settings(directory).values

    assert by_key(values) == {
        "CHECK_INTERVAL": 300,
        "CHECK_TIMEOUT": 900,
        "CHECKS_LIGHTWEIGHT": "0 2 3 7 8 9",
        "DCGM_HOST": "",
        "DCGM_BESIDE_EXPORTER": False,
        "DCGM_TIMEOUT": 900,
        "DCGM_L4_TIMEOUT": 9000,
        "ENABLE_TAINT": True,
        "ENABLE_LABEL": True,
        "TAINT_SEVERITY": Severity.RESET,
        "MAX_UNHEALTHY_PERCENT": 20,
        "BUDGET_LABEL": "",
        "REPAIR_CONDITIONS": "",
        "REPAIR_SEVERITY": Severity.ISOLATE,
        "GATE_SEVERITY": Severity.RESET,
        "DEVICE_TAINTS": False,
        "EVICT_SEVERITY": None,
        "EVICT_DELAY": 60,
        "MONITOR_TTL": 86400,
        "ESCALATE_AFTER": 2,
        "MAX_RETIRED_PAGES_SBE": 60,
        "EFA_MIN_BW": 0,
        "EFA_TEST_TIMEOUT": 180,
        "NCCL_MIN_BUS_BW": 0,
        "NCCL_TIMEOUT": 600,
        "severity-overrides": "",
        "node-overrides": "",
        "NVLINK_DEFAULT": Severity.RESET,
        "NVLINK5_DEFAULT": Severity.MONITOR,
        "STRICT_PSHC": False,
        "METRICS_TIMINGS": False,
        "DCGM_L2_INTERVAL": 21600,
        "MAX_NODES_PER_SWEEP": 10,
        "MAX_SWEEP_PERCENT": 20,
        "JOB_TIMEOUT": 900,
        "SWEEP_IMAGE": "",
        "SWEEP_NAMESPACE": "gpu-healthcheck",
        "KERNEL_LOG_LINES": "",
    }


def test_the_files_of_the_configmap_are_read(tmp_path: Path) -> None:
    write(tmp_path, CHECK_INTERVAL="60\n", CHECKS_LIGHTWEIGHT=" 0-nvidia-smi efa-count ", TAINT_SEVERITY="REBOOT")
    write(tmp_path, ENABLE_TAINT="false", STRICT_PSHC="1", NVLINK5_DEFAULT="ISOLATE", KERNEL_LOG_LINES="4000")
    write(tmp_path, **{"severity-overrides": "xid 13 = RESET\n# why\nGpuCountLow = MONITOR\n"})

    values = read_settings(tmp_path).values

    assert values.check_interval_seconds == 60
    assert [check.name for check in values.checks] == [*GROUP_0, "efa-count"]
    assert values.rules == Rules(Severity.REBOOT, enable_taint=False, enable_label=True)
    assert values.rules.repair == RepairPolicy((), Severity.ISOLATE)
    assert values.policy.overrides == {"Xid13": Severity.RESET, "GpuCountLow": Severity.MONITOR}
    assert (values.policy.strict_pshc, values.policy.nvlink5_default) == (True, Severity.ISOLATE)


def test_a_mounted_configmap_is_read_through_its_links(tmp_path: Path) -> None:
    (tmp_path / "..2026_11_21").mkdir()
    write(tmp_path / "..2026_11_21", CHECK_INTERVAL="77")
    (tmp_path / "..data").symlink_to("..2026_11_21")
    (tmp_path / "CHECK_INTERVAL").symlink_to("..data/CHECK_INTERVAL")

    assert read_settings(tmp_path).values.check_interval_seconds == 77


def test_the_configmap_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECK_INTERVAL", "20")
    monkeypatch.setenv("MONITOR_TTL", "3600")
    write(tmp_path, CHECK_INTERVAL="60")

    values = read_settings(tmp_path).values

    assert (values.check_interval_seconds, values.monitor_ttl_seconds) == (60, 3600)


def test_the_sweepers_keys_are_read(tmp_path: Path) -> None:
    write(tmp_path, DCGM_HOST="nvidia-dcgm.gpu-operator:5555", SWEEP_NAMESPACE="sweeps", DCGM_L2_INTERVAL="0")

    values = read_settings(tmp_path).values

    assert values.dcgm_host == "nvidia-dcgm.gpu-operator:5555"
    assert (values.sweep_namespace, values.dcgm_l2_interval_seconds) == ("sweeps", 0)


def test_keys_that_nobody_knows_change_nothing_and_are_named_with_what_may_be_meant(tmp_path: Path) -> None:
    write(tmp_path, QUARANTINE_NAMESPACE="x y", EFA_MAX_BW="x", CHECK_INTERVALL="60", MONITOR_TTL="120")
    write(tmp_path, **{"severity_overrides": "", "check-interval": "60", "zz": "", "instance-profiles.conf": ""})

    assert read_settings(tmp_path).values.check_interval_seconds == 300
    assert str(unknown_keys(tmp_path)) == (
        f"{tmp_path}: unknown settings, which have no effect: CHECK_INTERVALL (did you mean CHECK_INTERVAL?), "
        "EFA_MAX_BW (did you mean EFA_MIN_BW?), QUARANTINE_NAMESPACE (did you mean SWEEP_NAMESPACE?), "
        "check-interval (did you mean CHECK_INTERVAL?), severity_overrides (did you mean severity-overrides?), zz"
    )


def test_what_mounts_a_configmap_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "..2026_11_21").mkdir()
    write(tmp_path / "..2026_11_21", CHECK_INTERVAL="77", NONSENSE="1")
    (tmp_path / "..data").symlink_to("..2026_11_21")
    (tmp_path / "..data_tmp").symlink_to("..nowhere")
    (tmp_path / "CHECK_INTERVAL").symlink_to("..data/CHECK_INTERVAL")
    assert unknown_keys(tmp_path) is None

    (tmp_path / "NONSENSE").symlink_to("..data/NONSENSE")
    assert unknown_keys(tmp_path) == UnknownKeys((("NONSENSE", ""),), str(tmp_path))


@pytest.mark.parametrize("directory", [None, Path("/nowhere"), Path("/dev/null")])
def test_without_any_configuration_no_key_is_unknown(directory: Path | None) -> None:
    assert unknown_keys(directory) is None


def test_of_many_unknown_keys_some_are_named_and_all_are_counted(tmp_path: Path) -> None:
    write(tmp_path, **{f"N{number:03}-{'x' * 200}": "" for number in range(300)})
    message = str(unknown_keys(tmp_path))

    assert message.endswith(" and 292 more")
    assert len(message) < len(str(tmp_path)) + 800


def test_every_setting_is_a_known_key(tmp_path: Path) -> None:
    write(tmp_path, **dict.fromkeys(settings_of(NodeSettings), ""))

    assert unknown_keys(tmp_path) is None


@pytest.mark.parametrize("value", ["0", "500", "12500", "1000000"])
def test_bandwidths_of_efa_that_can_be_meant_are_taken(tmp_path: Path, value: str) -> None:
    write(tmp_path, EFA_MIN_BW=value)

    assert read_settings(tmp_path).values.efa_min_bandwidth == int(value)


BAD = [
    ("CHECK_INTERVAL", "9", SECONDS + "10 to 86400"),
    ("CHECK_INTERVAL", "86401", SECONDS + "10 to 86400"),
    ("CHECK_INTERVAL", "-300", SECONDS + "10 to 86400"),
    ("CHECK_INTERVAL", "5m", SECONDS + "10 to 86400"),
    ("CHECK_INTERVAL", "300.5", SECONDS + "10 to 86400"),
    ("CHECK_INTERVAL", "", SECONDS + "10 to 86400"),
    ("CHECK_INTERVAL", "9" * 5000, SECONDS + "10 to 86400"),
    ("CHECK_TIMEOUT", "0", SECONDS + "1 to 172800"),
    ("MAX_UNHEALTHY_PERCENT", "0", "a whole number, 1 to 100"),
    ("MAX_UNHEALTHY_PERCENT", "101", "a whole number, 1 to 100"),
    ("MAX_UNHEALTHY_PERCENT", "20%", "a whole number, 1 to 100"),
    ("DCGM_L2_INTERVAL", "-1", SECONDS + "0 to 31536000"),
    ("DCGM_TIMEOUT", "59", SECONDS + "60 to 86400"),
    ("MAX_NODES_PER_SWEEP", "0", "a whole number, 1 to 5000"),
    ("MAX_SWEEP_PERCENT", "101", "a whole number, 1 to 100"),
    ("JOB_TIMEOUT", "59", SECONDS + "60 to 86400"),
    ("SWEEP_NAMESPACE", "", "the name of a namespace"),
    ("SWEEP_NAMESPACE", "../kube-system", "the name of a namespace"),
    ("MONITOR_TTL", "59", SECONDS + "60 to 31536000"),
    ("MONITOR_TTL", "one day", SECONDS + "60 to 31536000"),
    ("MAX_RETIRED_PAGES_SBE", "0", "a whole number, 1 to 4096"),
    ("MAX_RETIRED_PAGES_SBE", "4097", "a whole number, 1 to 4096"),
    ("EFA_MIN_BW", "-1", "a whole number, 0 to 1000000"),
    ("EFA_MIN_BW", "9.5", "a whole number, 0 to 1000000"),
    (
        "EFA_MIN_BW",
        "1",
        "the unit is MB/s, 0 or 500 to 1000000, and the value is probably in Gbps: 1 Gbps are 125 MB/s",
    ),
    (
        "EFA_MIN_BW",
        "90",
        "the unit is MB/s, 0 or 500 to 1000000, and the value is probably in Gbps: 90 Gbps are 11250 MB/s",
    ),
    (
        "EFA_MIN_BW",
        "499",
        "the unit is MB/s, 0 or 500 to 1000000, and the value is probably in Gbps: 499 Gbps are 62375 MB/s",
    ),
    ("NCCL_MIN_BUS_BW", "-1", "a whole number, 0 to 10000"),
    ("NCCL_MIN_BUS_BW", "fast", "a whole number, 0 to 10000"),
    ("NCCL_TIMEOUT", "59", SECONDS + "60 to 86400"),
    ("EFA_TEST_TIMEOUT", "9", SECONDS + "10 to 3600"),
    ("EFA_TEST_TIMEOUT", "3m", SECONDS + "10 to 3600"),
    ("CHECKS_LIGHTWEIGHT", "0 99", "no check '99' (did you mean 9?); " + GROUPS),
    ("CHECKS_LIGHTWEIGHT", "0,2", "no check '0,2'; " + GROUPS),
    ("CHECKS_LIGHTWEIGHT", "GPU-COUNT", "no check 'GPU-COUNT' (did you mean gpu-count?); " + GROUPS),
    ("CHECKS_LIGHTWEIGHT", "0 1 2", "1 is not a light check: it needs exclusive use of the GPUs; " + GROUPS),
    ("CHECKS_LIGHTWEIGHT", "dcgm-l4", "dcgm-l4 is not a light check: it needs exclusive use of the GPUs; " + GROUPS),
    ("CHECKS_LIGHTWEIGHT", "", "names no check of the light check cycle; groups 0, 2, 3, 7, 8, 9 have some"),
    ("CHECKS_LIGHTWEIGHT", " \n ", "names no check of the light check cycle; groups 0, 2, 3, 7, 8, 9 have some"),
    ("DCGM_HOST", "--help", "allowed is host or host:port"),
    ("DCGM_HOST", "a;b", "allowed is host or host:port"),
    ("DCGM_HOST", "localhost:port", "allowed is host or host:port"),
    ("DCGM_TIMEOUT", "59", SECONDS + "60 to 86400"),
    ("DCGM_L4_TIMEOUT", "172801", SECONDS + "60 to 172800"),
    ("ENABLE_TAINT", "maybe", "allowed are true and false"),
    ("DEVICE_TAINTS", "GPU", "allowed are true and false"),
    ("ENABLE_LABEL", "", "allowed are true and false"),
    ("STRICT_PSHC", "2", "allowed are true and false, or 1 and 0"),
    ("METRICS_TIMINGS", "never", "allowed are true and false, or 1 and 0"),
    ("TAINT_SEVERITY", "reset", SEVERITIES),
    ("TAINT_SEVERITY", "PASS", SEVERITIES),
    ("TAINT_SEVERITY", "2", SEVERITIES),
    (
        "REPAIR_CONDITIONS",
        "GpuHealthy",
        "unknown condition 'GpuHealthy'; allowed are GpuRebootRequired, GpuReplacement",
    ),
    ("REPAIR_CONDITIONS", "GpuRebootRequired Ready", "unknown condition 'GpuRebootRequired Ready'; allowed are"),
    ("REPAIR_CONDITIONS", "AcceleratedHardwareReady, \x1b[2J", "unknown condition '"),
    ("BUDGET_LABEL", "a b", "the key of a node label"),
    ("BUDGET_LABEL", "Zone.Example/pool", "the key of a node label"),
    ("EVICT_SEVERITY", "RESET", "allowed are REBOOT or ISOLATE, or nothing"),
    ("EVICT_SEVERITY", "off", "allowed are REBOOT or ISOLATE, or nothing"),
    ("EVICT_DELAY", "1m", SECONDS + "0 to 86400"),
    ("REPAIR_SEVERITY", "RESET", "allowed are REBOOT or ISOLATE"),
    ("REPAIR_SEVERITY", "isolate", "allowed are REBOOT or ISOLATE"),
    ("REPAIR_SEVERITY", "", "allowed are REBOOT or ISOLATE"),
    ("NVLINK_DEFAULT", "SKIP", SEVERITIES),
    ("NVLINK5_DEFAULT", "", SEVERITIES),
    ("severity-overrides", "xid 13", "line 1: 'xid 13'; write `Reason = SEVERITY` or `xid 13 = RESET`"),
    ("severity-overrides", "# ok\nxid 13 = BAD", "line 2: severity 'BAD'; allowed are PASS, MONITOR"),
    ("severity-overrides", "\n  \nxid 13 = BAD\n\n", "line 3: severity 'BAD'; allowed are PASS, MONITOR"),
]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", ()),
        (" , ", ()),
        ("GpuRebootRequired", ("GpuRebootRequired",)),
        (" AcceleratedHardwareReady,GpuRebootRequired ,,AcceleratedHardwareReady\n", (HARDWARE_READY, REBOOT_REQUIRED)),
    ],
)
def test_conditions_for_repairers_are_named_with_commas_between(
    tmp_path: Path, text: str, named: tuple[str, ...]
) -> None:
    write(tmp_path, REPAIR_CONDITIONS=text, REPAIR_SEVERITY="REBOOT")

    assert read_settings(tmp_path).values.rules.repair == RepairPolicy(named, Severity.REBOOT)


@pytest.mark.parametrize(("key", "value", "allowed"), BAD)
def test_a_bad_value_is_named_with_its_file_and_what_is_allowed(
    tmp_path: Path, key: str, value: str, allowed: str
) -> None:
    write(tmp_path, **{key: value})

    (bad,) = refused(tmp_path)

    assert (bad.key, bad.where) == (key, str(tmp_path / key))
    assert bad.value == value.strip()[:80]
    assert bad.allowed.startswith(allowed)
    assert str(bad) == f"{tmp_path / key}: {key} = {bad.value!r}: {bad.allowed}"


def test_a_bad_value_of_the_environment_says_that_it_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECK_INTERVAL", "soon")

    assert refused(tmp_path) == (BadValue("CHECK_INTERVAL", "soon", SECONDS + "10 to 86400", "environment"),)


def test_all_bad_values_are_named_at_once(tmp_path: Path) -> None:
    write(tmp_path, CHECK_INTERVAL="soon", ENABLE_TAINT="x", **{"instance-profiles.conf": "p5|8"})

    assert sorted(value.key for value in refused(tmp_path)) == [
        "CHECK_INTERVAL",
        "ENABLE_TAINT",
        "instance-profiles.conf",
    ]


@pytest.mark.parametrize("key", ["CHECK_INTERVAL", "severity-overrides", "TAINT_SEVERITY", "KERNEL_LOG_LINES"])
def test_a_file_that_is_no_text_is_named(tmp_path: Path, key: str) -> None:
    write(tmp_path, **{key: b"\xff\xfe\x00"})

    (bad,) = refused(tmp_path)

    assert (bad.key, bad.where, bad.allowed) == (key, str(tmp_path / key), "readable UTF-8 text")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p5.48xlarge|8\n", ":1: 'p5.48xlarge|8' has 2 fields; write type|gpus|efa|nvlink|provider"),
        ("# a\n\np5|8|x|true|efa\n", ":3: efa 'x'; write a whole number from 0 to 4096"),
        (b"\xff\xfe|8|1|true|efa\n", r":1: type '\\xff\\xfe'; write an instance type"),
        ("p5|" + "0" * 5000 + "|1|true|efa", ":1: gpus '0000"),
        ("#" * ((1 << 20) + 100), ": 1048577 characters; at most 1048576 are read"),
    ],
)
def test_a_bad_profile_line_is_named_with_its_file_and_number(tmp_path: Path, text: str | bytes, message: str) -> None:
    write(tmp_path, **{"instance-profiles.conf": text})

    (bad,) = refused(tmp_path)

    assert bad.key == "instance-profiles.conf"
    assert bad.allowed.startswith(f"{tmp_path}/instance-profiles.conf{message}")


def test_a_row_of_the_configmap_stands_before_the_packaged_one(tmp_path: Path) -> None:
    write(tmp_path, **{"instance-profiles.conf": "p5.48xlarge|8|16|true|efa\nour-own|2|0|false|-\n"})

    profiles = read_settings(tmp_path).profiles

    assert profiles["p5.48xlarge"] == InstanceProfile("p5.48xlarge", 8, 16, True, "efa")
    assert profiles["our-own"] == InstanceProfile("our-own", 2, 0, False, "")
    assert profiles["p4d.24xlarge"].efa == 4


LAST = {
    "CHECK_INTERVAL": "60",
    "ENABLE_TAINT": "false",
    "severity-overrides": "xid 13 = RESET",
    "instance-profiles.conf": "our-own|2|0|false|-\n",
}


def test_instead_of_each_invalid_value_the_last_valid_one_is_used(tmp_path: Path) -> None:
    write(tmp_path, CHECK_INTERVAL=b"\xff", ENABLE_TAINT="flase", MONITOR_TTL="120", DCGM_TIMEOUT="soon")
    write(tmp_path, **{"severity-overrides": "xid 13", "instance-profiles.conf": "p5|8"})

    settings = read_settings(tmp_path, LAST)

    values = settings.values
    assert (values.check_interval_seconds, values.enable_taint, values.monitor_ttl_seconds) == (60, False, 120)
    assert values.dcgm_timeout_seconds == 900
    assert values.policy.overrides == {"Xid13": Severity.RESET}
    assert settings.profiles["our-own"].gpus == 2
    assert settings.texts == {**LAST, "MONITOR_TTL": "120"}
    assert {value.key for value in settings.bad} == {*LAST, "DCGM_TIMEOUT"}


@pytest.mark.parametrize("text", ["9", "", "\ud800", "9" * 5000])
def test_a_last_value_that_this_version_rejects_is_not_used(tmp_path: Path, text: str) -> None:
    write(tmp_path, CHECK_INTERVAL="soon", ENABLE_TAINT="flase")

    settings = read_settings(tmp_path, {"CHECK_INTERVAL": text, "ENABLE_TAINT": "false", "UNKNOWN": "x"})

    assert (settings.values.check_interval_seconds, settings.values.enable_taint) == (300, False)
    assert settings.texts == {"ENABLE_TAINT": "false"}
    assert sorted(value.key for value in settings.bad) == ["CHECK_INTERVAL", "ENABLE_TAINT"]


def test_a_key_that_is_gone_has_its_default_whatever_it_was(tmp_path: Path) -> None:
    write(tmp_path, MONITOR_TTL="120")

    settings = read_settings(tmp_path, LAST)

    assert (settings.values.check_interval_seconds, "our-own" in settings.profiles) == (300, False)
    assert settings.texts == {"MONITOR_TTL": "120"}


def test_a_start_with_a_bad_value_takes_its_default_and_keeps_the_good_ones(tmp_path: Path) -> None:
    write(tmp_path, CHECK_INTERVAL="soon", MONITOR_TTL="120")

    settings = read_settings(tmp_path)

    values = settings.values
    assert (values.check_interval_seconds, values.monitor_ttl_seconds, len(settings.bad)) == (300, 120, 1)
    assert settings.profiles["p5.48xlarge"].gpus == 8


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("0 2 3 7 8 9", [*GROUP_0, *GROUP_2, *GROUP_3, *GROUP_7, *GROUP_8, *GROUP_9]),
        ("2 0", [*GROUP_0, *GROUP_2]),
        ("2", GROUP_2),
        ("0-nvidia-smi", GROUP_0),
        ("nvidia-smi topology", [*GROUP_0, *GROUP_3]),
        ("xid 2 xid", ["xid", *GROUP_2]),
    ],
)
def test_checks_are_named_by_number_group_or_name(tmp_path: Path, words: str, names: list[str]) -> None:
    write(tmp_path, CHECKS_LIGHTWEIGHT=words)

    assert [check.name for check in read_settings(tmp_path).values.checks] == names


def test_a_folder_that_nobody_can_look_at_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "config").symlink_to("config")

    settings = read_settings(tmp_path / "config")

    assert (settings.values, settings.profiles) == (NodeSettings(), read_settings(None).profiles)
    assert [value.where for value in settings.bad] == [str(tmp_path / "config")] * 2
    assert all(value.passing and "symbolic links" in str(value) for value in settings.bad)
