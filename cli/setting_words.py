"""What each key of the ConfigMap means, for `gpu-healthcheck explain`; its default and bounds are the setting's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from healthcheck.catalog.profiles import PROFILES_FILE
from healthcheck.model import Severity
from healthcheck.settings.declared import settings_of
from healthcheck.settings.values import NodeSettings

MEANINGS: Mapping[str, str] = {
    "CHECK_INTERVAL": "Seconds between two light looks. A fault in the kernel's log never waits for one.",
    "CHECK_TIMEOUT": "Accepted and without effect: each probe has its own deadline, 60 s for NVML.",
    "CHECKS_LIGHTWEIGHT": "What a light look checks: numbers of groups, or names.",
    "DCGM_HOST": "The hostengine that runs DCGM's diagnostic, as host:port. Empty: the node's own where "
    "it is proven to be the host's or the GPU operator's; without any on the node, dcgmi starts one.",
    "DCGM_BESIDE_EXPORTER": "Whether deep tests run beside an engine that cannot be used, such as dcgm-exporter's. "
    "NVIDIA advises against two engines on one node. false: they do not, and DcgmEngineEmbedded is recorded.",
    "DCGM_TIMEOUT": "Seconds that DCGM's level 2 may take, with what of it is run again.",
    "DCGM_L4_TIMEOUT": "Seconds that DCGM's level 4 may take, with what of it is run again.",
    "ENABLE_TAINT": "Whether nodes are tainted. false: none is, and ours are taken away once, with an Event.",
    "ENABLE_LABEL": "Whether nodes are labelled. false: none is, and ours are taken away once, with an Event.",
    "TAINT_SEVERITY": "The mildest severity that taints a node: MONITOR, RESET, REBOOT or ISOLATE.",
    "MAX_UNHEALTHY_PERCENT": "Of the nodes with an agent, how many may carry our taint at once; always one.",
    "REPAIR_CONDITIONS": "Conditions that are written for repairers, with commas between: GpuRebootRequired, "
    "GpuReplacementRequired, AcceleratedHardwareReady. Empty: none, and ours are taken away once, with an Event.",
    "REPAIR_SEVERITY": "The mildest severity with which AcceleratedHardwareReady is False: REBOOT or ISOLATE.",
    "DEVICE_TAINTS": "Whether a bad GPU that DRA gives out is tainted instead of its node, where the cluster has "
    "DeviceTaintRules and kubernetes/overlays/device-taints is applied; the node's taint is the fallback. false: none, "
    "and ours are taken away once, with an Event.",
    "MONITOR_TTL": "Seconds after which an event of severity MONITOR is forgotten.",
    "ESCALATE_AFTER": "Resets or reboots within 7 days after which the same fault of a GPU is ISOLATE; 0: never.",
    "MAX_RETIRED_PAGES_SBE": "Before Ampere: a GPU with more retired pages of memory than this is to be replaced.",
    "EFA_MIN_BW": "Quarantine: MB/s that each EFA device has to reach with itself; 0: shown, not judged.",
    "EFA_TEST_TIMEOUT": "Quarantine: seconds for each side of one run of fi_pingpong; an EFA device gets two runs.",
    "NCCL_MIN_BUS_BW": "Quarantine: GB/s that an all-reduce has to reach; 0: a share of the instance type's figure.",
    "NCCL_TIMEOUT": "Quarantine: seconds for the all-reduce. One that does not end in it is a fault.",
    "severity-overrides": "Other severities for this cluster, a line each: `xid 13 = RESET` or `GpuCountLow = REBOOT`.",
    "NVLINK_DEFAULT": "What an Xid 74 is where NVIDIA's table of its words does not say.",
    "NVLINK5_DEFAULT": "What an Xid 144 to 150 is where NVIDIA's table of its words does not say.",
    "STRICT_PSHC": "Whether Xid 163 to 165 (power smoothing) are RESET; else they are MONITOR.",
    "DCGM_L2_INTERVAL": "Seconds in which each idle node is tested once by DCGM's level 2; 0: never.",
    "MAX_NODES_PER_SWEEP": "How many nodes may be under a sweep at the same time.",
    "MAX_SWEEP_PERCENT": "Of the nodes of one instance type, how many may be under a deep run at once; always one.",
    "JOB_TIMEOUT": "Seconds that a sweep's Job may take beyond DCGM_TIMEOUT: to be placed, to pull its image, to tell.",
    "SWEEP_IMAGE": "Accepted and without effect: a sweep's Jobs have the image of their CronJob.",
    "SWEEP_NAMESPACE": "Where a sweep's Jobs are made.",
    "KERNEL_LOG_LINES": "Accepted and without effect: a cursor took its place.",
    PROFILES_FILE: "What an instance type must have, a line each: type|gpus|efa|nvlink|provider[|roce].",
}


def settings_in_words() -> Iterator[tuple[str, str]]:
    """Each key, and what there is to say of it."""
    settings = settings_of(NodeSettings)
    for key, meaning in MEANINGS.items():
        setting = settings.get(key)
        told = [setting.bounds] if setting and setting.bounds else []
        if setting and setting.default != "":
            told.append(f"default {shown(setting.default)}")
        yield key, f"{meaning} ({', '.join(told)})" if told else meaning


def shown(value: object) -> str:
    """As it is written in the ConfigMap."""
    if isinstance(value, Severity):
        return value.name
    return str(value).lower() if isinstance(value, bool) else str(value)
