"""Content of an image, listed from its layers in the registry."""

from __future__ import annotations

from pathlib import Path

from release.programs import program
from release.registry import Registry
from release.running import run


def write(registry: Registry, digest: str, version: str, file: Path) -> None:
    """Write the content of the image as SPDX."""
    plain = {"SYFT_REGISTRY_INSECURE_USE_HTTP": "true"} if registry.plain_http else {}
    named = ("--source-name=gpu-healthcheck", f"--source-version={version}")
    words = ("scan", f"registry:{registry.repository}@{digest}", *named, f"--output=spdx-json={file}", "--quiet")
    run([program("syft"), *words], {"SYFT_CHECK_FOR_APP_UPDATE": "false", **plain})
