"""`gpu-healthcheck explain`, as a person calls it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from gpu_healthcheck.cli import index
from gpu_healthcheck.cli.app import app
from gpu_healthcheck.healthcheck.catalog.dcgm import dcgm_table
from gpu_healthcheck.healthcheck.catalog.sxid import sxid_table
from gpu_healthcheck.healthcheck.catalog.xid import xid_table
from gpu_healthcheck.healthcheck.checks import CHECKS, DEEP_CHECKS
from gpu_healthcheck.healthcheck.model import Reason

ROOT = Path(__file__).parents[2]
FAMILIES = ("Xid", "SXid")
OWN_NAMES = [reason for check in (*CHECKS, *DEEP_CHECKS) for reason in check.reasons if reason.name not in FAMILIES]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def ask(*words: str) -> Result:
    return CliRunner().invoke(app, ["explain", *words])


def explained(*words: str) -> str:
    answer = ask(*words)
    assert (answer.exit_code, answer.stderr) == (0, "")
    return re.sub(r" +", " ", answer.stdout).replace(" \n", "\n")


@pytest.mark.parametrize("words", [("79",), ("Xid79",), ("xid79",), ("xid", "79"), ("XID 79",), ("079",)])
def test_explain_finds_an_xid_in_each_spelling(words: tuple[str, ...]) -> None:
    answer = explained(*words)

    assert answer.startswith("Xid79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS\n")
    assert "fell off the bus" in answer
    assert "NVIDIA RESTART_BM: reboot the machine; to find the cause: CONTACT_SUPPORT" in answer
    assert "here REBOOT: drain and reboot the node (xid.csv:79)" in answer
    assert "source NVIDIA Xid catalogue 2025-09-30" in answer


def test_explain_names_the_source_of_a_code_without_an_action() -> None:
    answer = explained("185")

    assert answer.startswith("Xid185 SPARING_EVENT\nmeans The state of the GPU's spare units changed")
    assert "NVIDIA no action is published\nhere MONITOR: nothing now" in answer
    assert "source docs.nvidia.com/deploy/gpu-operational-events/620" in answer


@pytest.mark.parametrize("words", [("SXid20034",), ("sxid", "20034"), ("20034",), ("SXID 20034",)])
def test_explain_finds_an_sxid_in_each_spelling(words: tuple[str, ...]) -> None:
    answer = explained(*words)

    assert answer.startswith("SXid20034 DLPL_LTSSM_FAULT_UP\n")
    assert "do RESET: drain the node and reload the driver, or reboot. If you only reset" in answer
    assert "here RESET: drain the node and reload the driver, or reboot (sxid.csv:20034)" in answer
    assert "the word in it decides: Fatal is RESET" in answer


@pytest.mark.parametrize(
    "words",
    [
        ("149", "0x021425c6", "0x00000001"),
        ("Xid149", "0x021425C6", "0x1", "0x0", "0x0", "0x0"),
        ("149", "(0x021425c6 0x00000001 0x0)"),
        ("149", "0x021425c6,", "0x00000001"),
    ],
)
def test_explain_decodes_the_words_of_an_nvlink_xid_in_both_layouts(words: tuple[str, ...]) -> None:
    answer = explained(*words)

    assert "here RESET: drain the node and reset the GPU, or reboot (nvlink5_decode.csv:80;" in answer
    assert "before R575 NETIR_LINK_EVT: Link Fatal, RESET_GPU (nvlink5_decode.csv:80)" in answer
    assert "from R575 no row of NVIDIA's sheet has these words" in answer


def test_explain_decodes_the_bits_of_an_xid_74() -> None:
    answer = explained("74", "0x11", "0x0", "0x10000", "0x0", "0x4")

    assert "1, bit 0 nothing to do\n" in answer
    assert "1, bit 4 a parity or ECC fault of the link's hardware" in answer
    assert "3, bit 16 run the field diagnostics" in answer
    assert "5, bit 2 not in NVIDIA's table; report it" in answer
    assert "here RESET: drain the node and reset the GPU, or reboot (NVLINK_DEFAULT;" in answer


def test_explain_names_the_usage_of_data_words() -> None:
    assert "explain 74 0x... 0x..." in explained("74")


def test_explain_lists_the_recovery_actions_of_xid_154() -> None:
    answer = explained("154")

    assert "0x0 None: no finding;" in answer
    assert "0x2 Node Reboot Required: REBOOT;" in answer
    assert "0x5 Recover IMEX Domain (drivers from R595 on): MONITOR;" in answer


@pytest.mark.parametrize("reason", OWN_NAMES, ids=lambda reason: reason.name)
def test_explain_covers_every_reason(reason: Reason) -> None:
    answer = explained(reason.name)

    assert answer.startswith(f"{reason.name}\n")
    assert f"docs/findings.md#{reason.name.lower()}" in answer
    assert f"here {reason.severity.name}: " in answer
    assert _unfolded(f"fault {reason.threshold}") in _unfolded(answer) or not reason.threshold
    assert _unfolded(f"source {reason.source}") in _unfolded(answer) or not reason.source
    assert (f"in the first {reason.grace.seconds:g} s after" in answer) if reason.grace else "grace" not in answer


def _unfolded(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("word", ["DcgmDiagMemory", "dcgmdiagmemory", "DcgmDiagATestOfTomorrow"])
def test_explain_of_a_dcgm_test_refers_to_its_error(word: str) -> None:
    answer = explained(word)

    assert "here MONITOR" in answer
    assert "or worse, depending on the error in its detail (see `explain dcgm`)" in _unfolded(answer)


@pytest.mark.parametrize("words", [("dcgm", "46"), ("Dcgm46",), ("dcgm 46",)])
def test_explain_finds_a_dcgm_error_in_each_spelling(words: tuple[str, ...]) -> None:
    answer = explained(*words)

    assert answer.startswith("Dcgm46 PCIE_WIDTH\n")
    assert "DCGM CONFIG, which is MONITOR on our ladder" in answer
    assert "here RESET:" in answer
    assert "deviation a link with fewer lanes" in answer


def test_explain_of_a_dcgm_test_that_could_not_run() -> None:
    assert "The test could not run" in explained("dcgm", "117")


def test_explain_shows_the_reason_of_a_deviation() -> None:
    answer = explained("142")

    assert "here RESET:" in answer
    assert "deviation the video encoder stays stopped" in answer


@pytest.mark.parametrize(
    ("words", "name"),
    [(("998",), "Xid998"), (("xid", "999"), "Xid999"), (("99999",), "SXid99999"), (("dcgm", "999"), "Dcgm999")],
)
def test_explain_of_an_unlisted_code_is_monitor(words: tuple[str, ...], name: str) -> None:
    answer = explained(*words)

    assert answer.startswith(f"{name}\n")
    assert "Not in the catalogue" in answer
    assert "here MONITOR:" in answer


@pytest.mark.parametrize(
    ("override", "words", "here"),
    [
        ("xid 79 = ISOLATE", ("79",), "here ISOLATE: keep work away and replace the node (by {}; it would be REBOOT)"),
        (
            "xid 43 = RESET",
            ("43",),
            "here RESET: drain the node and reset the GPU, or reboot (by {}; it would be PASS)",
        ),
        (
            "xid 43 = RESET after 3 in 10m",
            ("43",),
            "repeated RESET from 3 processes on one GPU within 10 minutes (severity-overrides)",
        ),
        (
            "sxid 20034 = ISOLATE after 2 in 24h",
            ("SXid20034",),
            "repeated ISOLATE from 2 processes on one switch within 1440 minutes (severity-overrides)",
        ),
        ("xid 79 = PASS", ("79",), "here PASS: no finding; only counted (by {}; it would be REBOOT)"),
        ("sxid 20034 = REBOOT", ("SXid20034",), "here REBOOT: drain and reboot the node (by {}; it would be RESET)"),
        ("dcgm 52 = REBOOT", ("dcgm", "52"), "here REBOOT: drain and reboot the node (by {}; it would be ISOLATE)"),
        (
            "xid 149 = REBOOT",
            ("149", "0x021425c6", "0x1"),
            "here REBOOT: drain and reboot the node (by {}; it would be RESET)",
        ),
        (
            "GpuCountLow = MONITOR",
            ("GpuCountLow",),
            "here MONITOR: nothing now; check again when it recurs (by {}; it would be REBOOT)",
        ),
    ],
)
def test_explain_shows_severity_overrides(
    config: Path, monkeypatch: pytest.MonkeyPatch, override: str, words: tuple[str, ...], here: str
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    (config / "severity-overrides").write_text(override)

    assert here.format(config / "severity-overrides") in explained(*words)


@pytest.mark.parametrize(
    ("key", "value", "words", "here"),
    [
        ("NVLINK_DEFAULT", "REBOOT", ("74",), "here REBOOT: drain and reboot the node (NVLINK_DEFAULT)"),
        (
            "NVLINK5_DEFAULT",
            "REBOOT",
            ("149", "0x1", "0x1"),
            "here REBOOT: drain and reboot the node (NVLINK5_DEFAULT)",
        ),
        ("STRICT_PSHC", "1", ("163",), "(STRICT_PSHC)"),
    ],
)
def test_explain_applies_other_settings(config: Path, key: str, value: str, words: tuple[str, ...], here: str) -> None:
    (config / key).write_text(value)

    assert here in explained(*words)


def test_explain_without_a_word_lists_all_codes(config: Path) -> None:
    (config / "severity-overrides").write_text("xid 31 = RESET")

    answer = explained()

    assert [
        name for name in ("Xid79 REBOOT", "Xid43 -", "Xid31 RESET*", "GpuCountLow REBOOT") if name not in answer
    ] == []
    assert [code for code, row in xid_table().items() if row.meaning and f"Xid{code} " not in answer] == []
    assert [code for code in xid_table() if not re.search(rf"\b(Xid)?{code}\b", answer)] == []
    assert [code for code in sxid_table() if not re.search(rf"\b{code}\b", answer)] == []
    assert [row.name for row in dcgm_table().values() if row.name not in answer] == []


@pytest.mark.parametrize(("word", "shown", "hidden"), [("xid", "Xid79", "Dcgm52"), ("DCGM", "Dcgm52", "Xid79")])
def test_explain_lists_one_table_by_its_name(word: str, shown: str, hidden: str) -> None:
    answer = explained(word)

    assert (shown in answer, hidden in answer) == (True, False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("GpuCountLo",), "unknown name 'GpuCountLo' (did you mean GpuCountLow"),
        (("xyzzy",), "unknown name 'xyzzy'; allowed is an Xid (79, Xid79)"),
        (("PCIE_WIDTHS",), "did you mean dcgm 46"),
        (("79", "0x1"), "xid 79: only Xid 74 and 144 to 150 have data words to decode"),
        (("SXid20034", "0x1"), "sxid 20034: only Xid 74"),
        (("GpuCountLow", "0x1"), "GpuCountLow: only Xid 74"),
        (("149", "zz"), "unknown name '149 zz'"),
        (("rerun", "0x1"), "unknown name 'rerun'"),
        (("gpu-cuont",), "did you mean gpu-count"),
        (("x" * 999,), f"unknown name '{'x' * 60}'"),
        (("-79",), None),
    ],
)
def test_explain_refuses_an_unknown_word_with_the_allowed_ones(words: tuple[str, ...], message: str | None) -> None:
    answer = ask(*words)

    assert answer.exit_code != 0
    assert answer.stdout == ""
    if message:
        assert answer.exit_code == 3
        assert message in answer.stderr


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("reset", "a severity"),
        ("4-dcgm-diag-l4", "Its checks: dcgm-diag-l4."),
        ("efaLoopbackNotRun", "fi_pingpong could not run"),
        ("DeepDiagnosticFailed", "docs/findings.md#deepdiagnosticfailed"),
        ("nvmlLibraryMismatch", "Reboot after the upgrade of the driver"),
        ("DriverLibraryMismatch", "docs/findings.md#driverlibrarymismatch"),
        ("CHECK_INTERVAL", "a whole number of seconds, 10 to 86400, default 300"),
        ("check_interval", "here 300"),
        ("ENABLE_TAINT", "here true"),
        ("instance-profiles.conf", "type|gpus|efa|nvlink|provider"),
        ("gpu-count", "Group: 0-nvidia-smi. Reasons: GpuLost"),
        ("efa", "Short name of 2-efa-enumeration"),
        ("container-runtime", "Group: 7-container-runtime"),
        ("gpu_healthcheck_xids_total", "(counter, by code, by gpu, by UUID)"),
        ("EvictionAnnounced", "let it write a checkpoint"),
        ("EvictionRefused", "Change the budget or delete the pod"),
        ("EvictionCancelled", "an Event"),
        ("SlurmMustDrain", "drain it in Slurm"),
        ("gpu-healthcheck.aws-samples.io/evict", "docs/record.md"),
    ],
)
def test_explain_covers_causes_severities_settings_checks_and_metrics(word: str, shown: str) -> None:
    assert shown in explained(word)


def test_explain_covers_every_alert() -> None:
    rules = yaml.safe_load((ROOT / "kubernetes/overlays/monitoring/prometheus-rule.yaml").read_text())
    alerts = [rule["alert"] for group in rules["spec"]["groups"] for rule in group["rules"] if "alert" in rule]

    for alert in alerts:
        means = explained(alert)
        assert (f"docs/alerts.md#{alert.lower()}" in means, "Check:" in means) == (True, False), means


def test_explain_shows_the_value_of_a_setting(config: Path) -> None:
    (config / "CHECK_INTERVAL").write_text("60")
    (config / "TAINT_SEVERITY").write_text("REBOOT")

    assert "here 60\n" in explained("CHECK_INTERVAL")
    assert "here REBOOT\n" in explained("taint_severity")


def test_explain_shows_the_default_of_a_setting_without_a_configmap(config: Path) -> None:
    config.rmdir()

    assert (
        f"here 300, the default, because {config} does not exist here; a cluster's value is in its ConfigMap"
        in explained("CHECK_INTERVAL")
    )


def test_explain_shows_all_kinds_of_a_name() -> None:
    kinds = re.findall(r"^as (.*)$", explained("DriverNotLoaded"), re.MULTILINE)
    assert kinds == ["reason why a check could not run", "a cause that diagnose finds"]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("FabricNotReady", "the fabric manager does not run, or not yet"),
        ("DefaultRuntimeUndefined", "docs/causes.md#defaultruntimeundefined"),
        ("runtimeconfigmalformed", "docs/causes.md#runtimeconfigmalformed"),
        ("RuntimeCriDisabled", "docs/causes.md#runtimecridisabled"),
    ],
)
def test_explain_shows_the_finding_and_the_cause_of_the_same_name(name: str, cause: str) -> None:
    answer = _unfolded(explained(name))

    assert f"docs/findings.md#{name.lower()}" in answer
    assert cause in answer.partition("as a cause that diagnose finds")[2]
    document = json.loads(explained(name, "-o", "json"))
    assert (document["name"], [one["kind"] for one in document["also"]]) == (
        answer.split()[0],
        ["a cause that diagnose finds"],
    )


@pytest.mark.parametrize(
    ("words", "name", "cause"),
    [
        (("802",), "CUDA_ERROR_SYSTEM_NOT_READY, cudaErrorSystemNotReady", "FabricNotReady"),
        (("error", "802"), "cudaErrorSystemNotReady", "FabricNotReady"),
        (("cuda", "802"), "cudaErrorSystemNotReady", "FabricNotReady"),
        (("CUDA error 802",), "cudaErrorSystemNotReady", "FabricNotReady"),
        (("cudaErrorSystemNotReady",), "CUDA error 802", "FabricNotReady"),
        (("cuda_error_system_not_ready",), "CUDA error 802", "FabricNotReady"),
        (("999",), "CUDA_ERROR_UNKNOWN", "CudaCannotInitialize"),
        (("700",), "CUDA_ERROR_ILLEGAL_ADDRESS", "ProgramFaultOnGpu"),
        (("nvml", "15"), "NVML_ERROR_GPU_IS_LOST", "GpuHardwareFault"),
        (("NVML_ERROR_GPU_IS_LOST",), "NVML error 15", "GpuHardwareFault"),
        (("nccl", "6"), "ncclRemoteError", "CollectiveFails"),
    ],
)
def test_explain_finds_an_error_of_a_library_in_each_spelling(words: tuple[str, ...], name: str, cause: str) -> None:
    answer = explained(*words)

    assert name in answer
    assert "more https://" in answer
    assert f"docs/causes.md#{cause.lower()}" in answer
    assert not answer.startswith("Xid")


def test_explain_of_a_number_that_is_no_xid_says_so() -> None:
    assert "Xid 802 is not in the catalogue" in explained("802")
    assert "in the catalogue" not in explained("cuda", "802")
    assert explained("xid", "802").startswith("Xid802\nmeans Not in the catalogue")


def test_explain_of_a_number_of_both_shows_both_and_how_to_ask_for_one() -> None:
    answer = explained("46")

    assert answer.startswith("Xid46 ")
    assert "\nCUDA error 46\n" in answer
    assert "`gpu-healthcheck explain xid 46` explains only the Xid" in answer
    assert "CUDA error" not in explained("xid", "46")
    assert "Xid" not in explained("cuda", "46").partition("\n")[0]
    document = json.loads(explained("46", "-o", "json"))
    assert (document["name"], document["also"][0]["name"]) == ("Xid46", "CUDA error 46")
    assert "also" not in yaml.safe_load(explained("79", "-o", "yaml"))


_TAINT = "0/2 nodes are available: 1 node(s) had untolerated taint"
TEXTS = [
    ("GPU is lost", "GpuLostAtAllocation GpuHardwareFault"),
    ("nvml error: GPU is lost", "GpuHardwareFault"),
    ("system not yet initialized", "FabricNotReady"),
    (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "FabricNotReady",
    ),
    ("CUDA failure 802", "FabricNotReady"),
    ("drop-in config version", "RuntimeConfigMalformed"),
    ("containerd: drop-in config version 4 higher than root config version 2", "RuntimeConfigMalformed"),
    (
        'failed to get sandbox runtime: no runtime for "nvidia" is configured',
        "RuntimeHandlerMissing NvidiaRuntimeMissing",
    ),
    ("CUDA error: an illegal memory access was encountered", "ProgramFaultOnGpu"),
    ("Failed to initialize NVML: Unknown Error", "GpuAccessLostAtRuntime"),
    ("misaligned address", "ProgramFaultOnGpu"),
    ("nvml: ERROR_GPU_IS_LOST", "NVML"),
    ("NCCL error: unhandled system error", "CollectiveFails"),
    ("fell off the bus", "GpuFellOffBus Xid79"),
    ("fallen off the bus", "GpuHardwareFault Xid79"),
    ("cuInit returned 999", "CUDA CudaCannotInitialize"),
    ("cudaGetDeviceCount() failed with error code 100", "CUDA"),
    ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: none", "GpusAllInUse MoreGpusThanAnyNodeHas"),
    ("0/2 nodes are available: 2 node(s) had untolerated taint {nvidia.com/gpu: present}.", "TaintNotTolerated"),
    (
        "0/2 nodes are available: 2 node(s) had untolerated taint {gpu-healthcheck.aws-samples.io/unhealthy: true}.",
        "NodeKeptFromWork",
    ),
    (f"{_TAINT} {{node.kubernetes.io/not-ready: }}.", "NodeNotReady"),
    (f"{_TAINT} {{ToBeDeletedByClusterAutoscaler: 1}}.", "NodeUnderMaintenance"),
    (f"{_TAINT} {{AggregatedNodeHealth: False}}.", "NodeUnderMaintenance"),
    (f"{_TAINT} {{ebs.csi.aws.com/agent-not-ready: }}.", "NodeStartupUnfinished"),
    (f"{_TAINT} {{karpenter.sh/disrupted: }}, 2 node(s) had untolerated taint {{sku: gpu}}.", "TaintNotTolerated"),
    ('Failed to pull image "r/x:1": r/x:1: not found', "ImageNotFound"),
    ('pull access denied for x, repository does not exist or may require "docker login"', "ImagePullUnauthorized"),
    ('Failed to create pod sandbox: plugin type="calico" failed (add): no IP address left', "PodNetworkFails"),
    ("Allocate failed due to invalid allocation request: unknown device: GPU-1", "DeviceUnknownToPlugin"),
    ("Container main failed liveness probe, will be restarted", "LivenessProbeKills"),
    ("Failed to prepare dynamic resources: NodePrepareResources failed for claim a/b", "ClaimNotPrepared"),
    ("[ 12.3] NVRM: Xid (PCI:0000:0f:00): 79, pid=1, name=python, GPU has fallen off the bus.", "Xid79"),
    ("Nov 27 10:00:00 a kernel: NVRM: Xid (PCI:0000:0f:00): 43, pid=1, name=python, Ch 00000008", "Xid43"),
    ("NVRM: Xid (PCI:0000:0f:00): 79, GPU\nNVRM: Xid (PCI:0000:1f:00): 48, DBE", "Xid79 Xid48"),
    ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "SXid20034"),
    ("[ 1.0] NVRM: GPU 0000:65:00.0: RmInitAdapter failed! (0x22:0x56:894)", "GpuInitFailed"),
    ("RmInitAdapter failed! (0x22:0x56:894)", "GpuInitFailed"),
]


@pytest.mark.parametrize(("text", "names"), TEXTS, ids=[text for text, _ in TEXTS])
def test_explain_recognises_a_message_or_a_part_of_one(text: str, names: str) -> None:
    answer = explained(text)

    headings = [line.split()[0] for line in answer.splitlines() if line and not line.split()[0].islower()]
    assert [name for name in names.split() if name not in headings] == []
    document = json.loads(explained(text, "-o", "json"))
    assert document["name"].split()[0] in headings


OTHERS = [
    (f"{_TAINT} {{node.kubernetes.io/unreachable: }}.", "TaintNotTolerated"),
    (f"{_TAINT} {{karpenter.sh/disrupted: }}.", "TaintNotTolerated"),
    (f"{_TAINT} {{AggregatedNodeHealth: False}}.", "TaintNotTolerated"),
    (f"{_TAINT} {{nvidia.com/gpu: present}}.", "NodeUnderMaintenance"),
    ("Allocate failed due to rpc error: candidate pod not found, which is unexpected", "ImageNotFound"),
    ("could not open the device file /dev/nvidia0 (Permission denied)", "ImagePullUnauthorized"),
    ("[0] NCCL INFO Using network Socket", "PodNetworkFails"),
    ("nvidia-container-cli: device error: no-gpu-has-128MiB-to-run: unknown device", "DeviceUnknownToPlugin"),
]


@pytest.mark.parametrize(("text", "name"), OTHERS, ids=[text for text, _ in OTHERS])
def test_explain_names_no_cause_of_another_kind_of_message(text: str, name: str) -> None:
    headings = [line.split()[0] for line in explained(text).splitlines() if line.strip()]

    assert len(headings) > 1
    assert name not in headings


def test_explain_of_a_line_of_the_kernel_explains_its_code_alone() -> None:
    document = json.loads(explained("NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus.", "-o", "json"))

    assert (document["name"], "also" in document) == ("Xid79", False)


@pytest.mark.parametrize(
    ("line", "here"),
    [
        (
            "[ 1.0] NVRM: Xid (PCI:0000:0f:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000)",
            "RESET: drain the node and reset the GPU, or reboot (nvlink5_decode.csv:84; NETIR_LINK_EVT",
        ),
        (
            "kernel: NVRM: Xid (PCI:0000:0f:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
            "PASS: no finding; only counted (the words of the line; RLW_RXPIPE: Non-fatal, IGNORE)",
        ),
        (
            "NVRM: Xid (PCI:0000:0f:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Reboot Required)",
            "REBOOT: drain and reboot the node (xid.csv:154)",
        ),
        (
            "NVRM: Xid (PCI:0000:0f:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            "PASS: no finding; only counted (xid.csv:154)",
        ),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Non-fatal, Link 30", "MONITOR: nothing now"),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Data {0x0}", "RESET: drain the node and reload"),
        ("NVRM: Xid (PCI:0000:0f:00): 45, pid=1, name=a, Ch 00000001 caused by previous Xid 149", "MONITOR: nothing"),
    ],
)
def test_explain_of_a_line_has_the_severity_of_its_words(line: str, here: str) -> None:
    assert f"here {here}" in _unfolded(explained(line))


def test_explain_of_an_error_that_no_rule_judges_says_so() -> None:
    answer = ask("[ 1.0] NVRM: GPU0 kfspPollForResponse_IMPL: FSP command timed out")

    assert (answer.exit_code, answer.stdout) == (3, "")
    assert "an error in this line that no rule judges" in answer.stderr


def test_explain_of_a_line_of_a_components_log_names_the_fix() -> None:
    answer = _unfolded(explained('level=fatal msg="unable to load config: unsupported config version: 4"'))

    assert answer.startswith("unsupported config version as a message in a component's log means The toolkit's image")


def test_explain_of_a_message_names_the_fix_of_its_error() -> None:
    answer = _unfolded(explained("ValueError: No available memory for the cache blocks."))

    assert answer.startswith("GpuMemoryExhausted")
    assert "as the fix of this message means The model leaves no memory for its KV cache" in answer


@pytest.mark.parametrize(
    "text",
    [
        "hello world, nothing is wrong",
        "0 errors",
        "exit code 137",
        "HTTP status code 500: error 401",
        "needs cuda 12.4 or 13 to run",
        "make: Error 2",
        "no pods",
        "NVRM: loading",
        "nvidia 0000:0a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "no such thing here",
    ],
)
def test_explain_of_an_unknown_text_is_a_usage_error(text: str) -> None:
    answer = ask(text)

    assert (answer.exit_code, answer.stdout) == (3, "")
    assert "unknown name" in answer.stderr


def test_texts_of_explain_match_no_empty_text() -> None:
    assert [known for known in index.texts() if re.search(known.pattern, "")] == []
    assert {known.name.lower() for known in index.texts() if known.name} <= {*index.reasons(), *index.words()}


def test_explain_refuses_an_invalid_setting(config: Path) -> None:
    (config / "severity-overrides").write_text("\nxid 79 = BAD")

    answer = ask("79")

    assert (answer.exit_code, answer.stdout) == (3, "")
    assert "line 2: severity 'BAD'" in answer.stderr


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize(
    "words", [(), ("79",), ("149", "0x021425c6", "0x1"), ("154",), ("SXid11001",), ("dcgm", "46"), ("reset",)]
)
def test_explain_in_a_pipe_fits_the_width_without_colours(
    monkeypatch: pytest.MonkeyPatch, columns: int, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    answer = ask(*words)

    assert "\x1b" not in answer.stdout
    assert max(len(line) for line in answer.stdout.splitlines()) <= columns
