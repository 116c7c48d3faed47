"""Platforms of krew's users, and the wheels for them."""

from __future__ import annotations

from dataclasses import dataclass

PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True, slots=True)
class Platform:
    """Platform: `os` and `arch` of krew's selectors, `tags` of wheels (PyPA's platform compatibility tags)."""

    os: str
    arch: str
    tags: tuple[str, ...]

    def archive(self, version: str) -> str:
        return f"gpu-healthcheck_v{version}_{self.os}_{self.arch}.tar.gz"


PLATFORMS = (
    Platform("linux", "amd64", ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")),
    Platform("linux", "arm64", ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")),
    Platform("darwin", "amd64", ("macosx_11_0_x86_64", "macosx_10_13_x86_64", "macosx_10_12_x86_64")),
    Platform("darwin", "arm64", ("macosx_11_0_arm64",)),
)
