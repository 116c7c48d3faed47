"""The real Helm, to hold the chart against: our cache, or one Go build (a minute or two on two cores, once)."""

from __future__ import annotations

import sys
from pathlib import Path

from sim.control_plane.build import built, digest, go_build, home_of, kubernetes_version

_ROOM = Path(__file__).parent
_KUBERNETES = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"


def program() -> Path:
    """Built first where need be. Raises NoBinariesError where there is no Go either."""

    def build(folder: Path) -> None:
        print("building Helm, once: a minute or two", file=sys.stderr, flush=True)
        # Without a cluster it takes a chart to be for this Kubernetes, and 1.20 where nothing is said.
        major, minor, _ = kubernetes_version().split(".", 2)
        flags = f"-s -w -X {_KUBERNETES}Major={major} -X {_KUBERNETES}Minor={minor}"
        go_build(_ROOM, folder, flags, ["helm.sh/helm/v3/cmd/helm"])

    return built(home_of("helm") / digest(_ROOM), build) / "helm"
