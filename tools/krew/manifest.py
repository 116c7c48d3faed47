"""The plugin's manifest in the format of krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.krew.archive import PROGRAM
from tools.krew.platforms import Platform

_DESCRIPTION = """\
Shows the health of GPU nodes, finds the cause and the fix for stuck GPU pods, quarantines suspect nodes and
releases them. Evaluates saved kernel logs, nvidia-bug-report files and DCGM's results without a cluster.
Install the agent, the sweeps and the admission policies in the cluster separately.
"""
_CAVEATS = """\
Needs Python 3.11 to 3.14 on the PATH. The archive contains the dependencies.
"""


def manifest(version: str, homepage: str, url: str, checksums: Mapping[Platform, str]) -> dict[str, Any]:
    """Return the manifest. `url`: the folder of the archives; `checksums`: the SHA-256 of each, in hex."""
    return {
        "apiVersion": "krew.googlecontainer.tools/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "gpu-healthcheck"},
        "spec": {
            "version": f"v{version}",
            "homepage": homepage,
            "shortDescription": "Health of GPU nodes, and why GPU pods wait",
            "description": _DESCRIPTION,
            "caveats": _CAVEATS,
            "platforms": [_platform(platform, version, url, checksum) for platform, checksum in checksums.items()],
        },
    }


def _platform(platform: Platform, version: str, url: str, checksum: str) -> dict[str, Any]:
    return {
        "selector": {"matchLabels": {"os": platform.os, "arch": platform.arch}},
        "uri": f"{url.rstrip('/')}/{platform.archive(version)}",
        "sha256": checksum,
        "bin": PROGRAM,
    }
