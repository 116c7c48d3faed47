"""A real Prometheus on loopback, with our rules, that scrapes where a test says."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from gpu_healthcheck.healthcheck.cluster.prometheus import PrometheusError, instant
from tests.tiers import cannot_run
from tests.waiting import GIVE_UP_SECONDS, eventually
from tools.rules import plain_rules

CONFIGURATION = {
    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
    "rule_files": ["rules.yaml"],
    "scrape_configs": [
        {"job_name": "gpu-healthcheck", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}
    ],
}


def at_once(rules: str) -> dict[str, Any]:
    """The rules without their waiting times and intervals: those are rules_test.yaml's, by promtool's clock."""
    read: dict[str, Any] = yaml.safe_load(rules)
    for group in read["groups"]:
        group.pop("interval", None)
    for rule in (rule for group in read["groups"] for rule in group["rules"]):
        for waits in ("for", "keep_firing_for"):
            rule.pop(waits, None)
    return read


_READY = "ready to receive web requests"


class PrometheusServer:
    """A Prometheus that ends when it is closed. The kernel assigns its port, so that it is unique."""

    def __init__(self, folder: Path, rules: str = plain_rules()) -> None:
        program = shutil.which("prometheus")
        if program is None:
            cannot_run("NOT TESTED with a real Prometheus (Debian: apt-get install prometheus)")
        folder.mkdir()
        self.log = folder / "log"
        self._targets = folder / "targets.json"
        self._targets.write_text("[]")
        (folder / "rules.yaml").write_text(yaml.safe_dump(at_once(rules)))
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(CONFIGURATION))
        options = {
            "config.file": folder / "prometheus.yaml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": "127.0.0.1:0",
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, *(f"--{name}={value}" for name, value in options.items())], stdout=log, stderr=log
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(GIVE_UP_SECONDS)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{eventually(self._port, self.log.read_text)}"

    def scrape(self, node: str, port: int, *others: int) -> None:
        """This agent, in place of another; its series carry its Node's name. `others`: programs that are no agents."""
        self.set_targets((port, {"node": node}), *((other, {}) for other in others))

    def set_targets(self, *targets: tuple[int, dict[str, str]]) -> None:
        """Scrape these ports only, each with its own labels."""
        fresh = self._targets.with_suffix(".fresh")
        groups = [{"targets": [f"127.0.0.1:{port}"], "labels": labels} for port, labels in targets]
        fresh.write_text(json.dumps(groups))
        fresh.rename(self._targets)

    def wait_for(self, query: str, count: int | None = 1) -> list[dict[str, str]]:
        """The labels of each series of the answer, once there are so many; None: any at all."""

        def ask() -> list[list[dict[str, str]]]:
            try:
                entries = [entry["metric"] for entry in instant(self.url, query)]
            except PrometheusError:
                return []
            return [entries] if (entries if count is None else len(entries) == count) else []

        return eventually(ask, self.log.read_text)[0]

    def rules(self) -> list[dict[str, Any]]:
        """Each with its health, as its last evaluation was."""
        with urllib.request.urlopen(f"{self.url}/api/v1/rules", timeout=GIVE_UP_SECONDS) as answer:
            groups = json.load(answer)["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _port(self) -> int | None:
        """Return the port of a server that is ready; before that, it answers 503."""
        assert self._process.poll() is None, self.log.read_text()
        if _READY not in self.log.read_text():
            return None
        listening = psutil.Process(self._process.pid).net_connections("tcp")
        return next((pair.laddr.port for pair in listening if pair.status == psutil.CONN_LISTEN), None)
