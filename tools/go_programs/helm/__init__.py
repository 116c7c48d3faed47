"""The real Helm, to test and package the chart: from our cache, or one Go build (a minute or two, once)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools.go_programs.build import built, digest, go_build, home_of

_ROOM = Path(__file__).parent
_KUBERNETES = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"


def program() -> Path:
    """Return Helm's path, and build it if necessary. Raises NoProgramError without Go."""

    def build(folder: Path) -> None:
        print("building Helm (once, takes one or two minutes)", file=sys.stderr, flush=True)
        # Without a cluster, Helm renders charts for this version of Kubernetes; the default is 1.20.
        flags = f"-s -w -X {_KUBERNETES}Major=1 -X {_KUBERNETES}Minor={_client_minor()}"
        go_build(_ROOM, folder, flags, ["helm.sh/helm/v3/cmd/helm"])

    return built(home_of("helm") / digest(_ROOM), build) / "helm"


def _client_minor() -> str:
    """Return the minor version of Helm's Kubernetes client, as Helm's Makefile does: client-go 0.37 belongs to 1.37."""
    (minor,) = re.findall(r"k8s\.io/client-go v0\.(\d+)\.", (_ROOM / "go.mod").read_text())
    return str(minor)
