"""The released chart: its values name the images by digest, so that an installation needs no `--set`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from go_programs import helm
from release.registry import Registry, resolve
from release.running import ReleaseError, run

_CHART = Path("charts/gpu-healthcheck")


def package(tree: Path, out: Path, registry: Registry, full: str, slim: str) -> Path:
    """Package the chart of the tree into the folder."""
    with tempfile.TemporaryDirectory() as folder:
        chart = shutil.copytree(tree / _CHART, Path(folder) / _CHART.name)
        values = chart / "values.yaml"
        values.write_text(by_digest(values.read_text(), registry.repository, full, slim))
        run([str(helm.program()), "package", str(chart), f"--destination={out}"])
    (archive,) = out.glob(f"{_CHART.name}-*.tgz")
    return archive


def by_digest(values: str, repository: str, full: str, slim: str) -> str:
    """Return values.yaml with repository and digests filled in; pure. Raises ReleaseError if a line is missing."""
    for key, old, new in (
        ("image", "  repository: gpu-healthcheck\n", f"  repository: {repository}\n"),
        ("image", "  digest: ''\n", f"  digest: {full}\n"),
        ("slim", "  digest: ''\n", f"  digest: {slim}\n"),
    ):
        head, found, block = f"\n{values}".partition(f"\n{key}:\n")
        if not found or old not in block:
            raise ReleaseError(f"the chart's values have no `{old.strip()}` below `{key}`")
        values = f"{head}{found}{block.replace(old, new, 1)}".removeprefix("\n")
    return values


def push(archive: Path, registry: Registry, version: str) -> str:
    """Push the chart to `charts/` next to the image, and return its digest."""
    plain = ("--plain-http",) if registry.plain_http else ()
    run([str(helm.program()), "push", str(archive), f"oci://{registry.charts}", *plain])
    return resolve(f"{registry.charts}/{_CHART.name}:{version}")
