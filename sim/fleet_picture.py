"""Draw docs/images/fleet-page.png: `gpu-healthcheck status -o html` of a stand-in cluster, in headless Chromium.

`python -m sim.fleet_picture [FILE]` needs `chromium` on the PATH (Debian: `apt-get install chromium`).
"""

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from healthcheck.cluster.cluster_settings import CONFIG_MAP
from healthcheck.cluster.names import BUDGET_NAMESPACE, NAMESPACE
from healthcheck.memory.findings import gpu_address
from healthcheck.model import PREFIX, Severity
from healthcheck.text.moments import exact, timestamp
from sim.api_objects import CONFIG_MAPS, LEASES
from sim.api_stand_in import ApiStandIn

PICTURE = Path(__file__).parents[1] / "docs/images/fleet-page.png"
SIZE = "1280,1180"
RACKS, NODES_PER_RACK = 5, 8
GPU, SWITCH = "gpu/0000:{:02x}:00.0", "nvswitch/0000:85:00.0"
FAULTS: dict[tuple[int, int], list[tuple[str, str, str]]] = {
    (2, 0): [("RowRemapFailed", "ISOLATE", GPU.format(0x5D))],
    (2, 1): [("Xid79", "REBOOT", GPU.format(0x9B))],
    (2, 3): [("SXid20034", "RESET", SWITCH), ("NvLinkDown", "RESET", GPU.format(0x18))],
    (2, 6): [("NvLinkDown", "RESET", GPU.format(0x2A))],
    (4, 2): [("EccUncorrected", "RESET", GPU.format(0xAB))],
    (0, 5): [("Xid13", "MONITOR", GPU.format(0x18))],
}
"""Findings by rack and place: reason, severity, subject."""
SILENT, WITHOUT_AGENT, UNREAD = (1, 4), (3, 7), (4, 6)
_CHROMIUM = (
    *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


def name_of(rack: int, place: int) -> str:
    return f"ip-10-0-{rack}-{20 + 13 * place}.eu-central-1.compute.internal"


def add_node(api: ApiStandIn, rack: int, place: int, now: datetime) -> None:
    name, findings = name_of(rack, place), FAULTS.get((rack, place), [])
    api.add_node(name)
    labels = {"topology.k8s.aws/network-node-layer-3": f"nn-0c{rack:03}f1e2d3c4b5a69"}
    metadata: dict[str, Any] = {"labels": labels}
    is_unread = (rack, place) == UNREAD
    if (rack, place) != WITHOUT_AGENT:
        worst = max((Severity[severity] for _, severity, _ in findings), default=Severity.PASS)
        status = "unknown" if is_unread else ("pass", "warn", "fail", "fail", "fail")[worst]
        since = now - timedelta(hours=3 + rack, minutes=7 * place)
        labels |= {f"{PREFIX}/status": status, f"{PREFIX}/severity": worst.name}
        record = {"schema": 1, "status": status, "severity": worst.name, "timestamp": timestamp(now)}
        record["findings"] = [finding(*fault, since) for fault in findings]
        if is_unread:
            record["unobserved"] = [{"check": "driver", "cause": "DriverBeingChanged", "detail": ""}]
        metadata["annotations"] = {f"{PREFIX}/results": json.dumps(record)}
        renewed = now - timedelta(minutes=47 if (rack, place) == SILENT else 1)
        beat = {"renewTime": exact(renewed), "leaseDurationSeconds": 900}
        api.store.create(LEASES, NAMESPACE, {"metadata": {"name": name}, "spec": beat})
    taints = []
    if findings and labels[f"{PREFIX}/status"] == "fail":
        taints = [{"key": f"{PREFIX}/unhealthy", "value": "true", "effect": "NoSchedule"}]
        slot = {"metadata": {"name": f"slot-{len(api.store.find_all(LEASES, BUDGET_NAMESPACE)[0])}"}}
        api.store.create(LEASES, BUDGET_NAMESPACE, slot | {"spec": {"holderIdentity": name}})
    api.edit_node(name, {"metadata": metadata, "spec": {"taints": taints}})


def finding(reason: str, severity: str, subject: str, since: datetime) -> dict[str, Any]:
    times = {"first_seen": timestamp(since), "last_seen": timestamp(since), "count": 1}
    about = {"serial": f"165{int(gpu_address(subject)[5:7], 16):010}"} if gpu_address(subject) else {}
    return {"reason": reason, "severity": severity, "subject": subject, "about": about, "nature": "event", **times}


def page() -> bytes:
    """Return the page of the stand-in cluster."""
    with tempfile.TemporaryDirectory() as folder, ApiStandIn() as api:
        api.delete_node("gpu-node-1")
        api.store.create(CONFIG_MAPS, NAMESPACE, {"metadata": {"name": CONFIG_MAP}, "data": {}})
        now = datetime.now(UTC)
        for rack in range(RACKS):
            for place in range(NODES_PER_RACK):
                add_node(api, rack, place, now)
        kubeconfig = api.kubeconfig(Path(folder) / "kubeconfig")
        kubeconfig.write_text(kubeconfig.read_text().replace("stand-in", "training"))
        command = [sys.executable, "-m", "cli", "status", "-o", "html"]
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout


def main(picture: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "fleet.html").write_bytes(page())
        options = (f"--user-data-dir={folder}/profile", f"--window-size={SIZE}", f"--screenshot={picture.resolve()}")
        picture.parent.mkdir(parents=True, exist_ok=True)
        command = [*_CHROMIUM, *options, f"file://{folder}/fleet.html"]
        # Without a desktop Chromium prints dozens of lines about D-Bus; its exit code is sufficient.
        subprocess.run(command, check=True, timeout=120, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
