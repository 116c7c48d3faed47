"""DCGM level 2 for `gpu-healthcheck check 1`: on this machine, at once, unless a process uses its GPUs."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

from gpu_healthcheck.healthcheck.catalog import dcgm
from gpu_healthcheck.healthcheck.checks import driver
from gpu_healthcheck.healthcheck.checks.examine import read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.deep.diagnostic import Idleness, with_doubts_settled
from gpu_healthcheck.healthcheck.host.program import stop_at_signals
from gpu_healthcheck.healthcheck.host.streams import say
from gpu_healthcheck.healthcheck.model import Host, ProbeError, Unobserved
from gpu_healthcheck.healthcheck.probes.dcgm.diag import Dcgm, DcgmReading, level_2_patience_seconds
from gpu_healthcheck.healthcheck.probes.dcgm.engine import choose_engine
from gpu_healthcheck.healthcheck.probes.pod_resources import is_kubelet_here, read_gpu_holders
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings

_BEGINS = "DCGM's level 2 takes minutes, {} s at most; Ctrl-C ends it"


def who_uses(host: Host) -> str:
    """Return the users of the GPUs of this machine, or the reason why they are unknown; '' without users."""
    seen = read_probes(host, (driver.CHECK,))
    # In a pod there is a kubelet, even if its folder is not mounted.
    is_in_pod = "KUBERNETES_SERVICE_HOST" in os.environ

    def held() -> list[tuple[str, str, int]]:
        return read_gpu_holders(host) if is_in_pod or is_kubelet_here(host.root) else []

    idleness = Idleness(held, lambda: seen)
    try:
        return idleness.used()
    except ProbeError as error:
        return f"it is unknown whether its GPUs are in use: {error}"


@dataclass
class Level2Run:
    """One run of level 2. A signal stops DCGM in the way that DCGM needs; no process of the run remains."""

    values: NodeSettings
    root: Path
    was_stopped: bool = field(default=False, init=False)

    def run(self, level: int) -> DcgmReading:
        values = self.values
        engine = choose_engine(self.root, values.dcgm_host, second_engine=values.dcgm_second_engine)
        patience_seconds = level_2_patience_seconds(engine.host)
        diagnostic = Dcgm(engine.host, values.dcgm_timeout_seconds, None, patience_seconds, engine, self.root)
        self._stop_at_signals(diagnostic)
        say(_BEGINS.format(self.values.dcgm_timeout_seconds))
        answer = with_doubts_settled(diagnostic, diagnostic.run(level), Expectation(policy=self.values.policy))
        # It was requested by name, so a missing dcgmi is an error here, not "not applicable".
        return DcgmReading(Unobserved(dcgm.NOT_INSTALLED, answer.absent)) if answer.absent else answer

    def _stop_at_signals(self, diagnostic: Dcgm) -> None:
        stop = stop_at_signals()
        signal.signal(signal.SIGHUP, lambda *_: None)  # the terminal was closed: handled like the others

        def end() -> None:
            stop.wait()
            self.was_stopped = True
            diagnostic.stop()

        threading.Thread(target=end, name="stop", daemon=True).start()
