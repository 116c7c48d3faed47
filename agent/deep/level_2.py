"""Access of the agent's level 2 to this machine: dcgmi, and the users of the GPUs."""

from __future__ import annotations

import shutil
from pathlib import Path

from agent.state.agent_state import AgentState
from healthcheck.deep.diagnostic import Diagnostic
from healthcheck.deep.idle import Idleness
from healthcheck.model import Host
from healthcheck.probes.dcgm.diag import Dcgm, level_2_patience_seconds
from healthcheck.probes.dcgm.engine import Engine, choose_engine
from healthcheck.probes.kubelet_claims import are_claimed, read_gpu_holders


class Level2:
    """dcgmi and GPU users of this machine. `path` is the search path of dcgmi; None: PATH of the environment."""

    def __init__(self, root: Path, state: AgentState, path: str | None = None) -> None:
        self._host = Host(root)
        self._state = state
        self.path = path
        self._idleness = Idleness(self._pods, lambda: state.last_evidence)

    def is_absent(self) -> bool:
        """Whether there is no dcgmi; costs nothing."""
        return shutil.which("dcgmi", path=self.path) is None

    def are_claimed(self) -> bool:
        """Whether DRA allocates this node's GPUs, which the Node does not show. Raises ProbeError."""
        return are_claimed(self._host.root)

    def diagnostic(self) -> Diagnostic:
        """Return a new engine for each run, with the current settings."""
        values, engine, root = self._state.settings.values, self.engine(), self._host.root
        patience_seconds = level_2_patience_seconds(engine.host)
        return Dcgm(engine.host, values.dcgm_timeout_seconds, self.path, patience_seconds, engine, root)

    def engine(self) -> Engine:
        """Return the engine for a run, with the current settings."""
        values = self._state.settings.values
        return choose_engine(self._host.root, values.dcgm_host, second_engine=values.dcgm_second_engine)

    def users(self) -> str:
        """Return the users of the GPUs, by the kubelet and the last cycle; '' without users. Raises ProbeError."""
        return self._idleness.used()

    def pods(self) -> str:
        """Return the pods that own GPUs, '' without any; read while a test uses the GPUs. Raises ProbeError."""
        return self._idleness.held()

    def _pods(self) -> list[tuple[str, str, int]]:
        return read_gpu_holders(self._host)
