"""Expected hardware of each instance type: strict parser of `instance-profiles.conf`.

Errors name the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

PROFILES_FILE = "instance-profiles.conf"
_TYPE = re.compile(r"[a-z0-9][a-z0-9.-]*\Z")
FORM = "type|gpus|efa|nvlink|provider[|roce]"
_MOST = 4096
"""Most GPUs or EFA devices of a node. A higher number is a typing error."""
_LONGEST = 1 << 20


class ProfileError(ValueError):
    """Error for a line that is not a valid profile.

    The message names the line, the value and the allowed values.
    """


class InstanceProfile(Struct, frozen=True):
    """Expected hardware of one instance type.

    `efa` is the highest number of interfaces that a launch template can attach. `provider` is libfabric's name or ''.
    `roce` is the number of RoCE interfaces.
    """

    instance_type: str
    gpus: int
    efa: int
    nvlink: bool
    provider: str
    roce: int = 0


Profiles = Mapping[str, InstanceProfile]


def read_packaged() -> Profiles:
    """Return the table included in the package."""
    from importlib.resources import files  # noqa: PLC0415 - many callers use only InstanceProfile

    text = files("gpu_healthcheck.healthcheck").joinpath(PROFILES_FILE).read_text(encoding="utf-8")
    return parse_profiles(text, PROFILES_FILE)


def parse_profiles(text: str, name: str = PROFILES_FILE) -> dict[str, InstanceProfile]:
    """Parse lines of the form `type|gpus|efa|nvlink|provider[|roce]`. `#` begins a comment.

    Raises ProfileError at the first invalid line.
    """
    if len(text) > _LONGEST:
        raise ProfileError(f"{name}: {len(text)} characters; at most {_LONGEST} are read")
    profiles: dict[str, InstanceProfile] = {}
    for line_number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if line:
            profile = _parse_line(line, f"{name}:{line_number}")
            if profile.instance_type in profiles:
                raise ProfileError(f"{name}:{line_number}: {profile.instance_type!r} already has a line above")
            profiles[profile.instance_type] = profile
    return profiles


def find_profile(profiles: Profiles, instance_type: str) -> InstanceProfile | None:
    """Return the profile of a type; None if there is no expectation. HyperPod's prefix `ml.` is dropped."""
    return profiles.get(instance_type.removeprefix("ml."))


def _parse_line(line: str, where: str) -> InstanceProfile:
    columns = [field.strip() for field in line.split("|")]
    if len(columns) not in (5, 6):
        raise ProfileError(f"{where}: {line[:80]!r} has {len(columns)} fields; write {FORM}")
    instance_type, gpus, efa, nvlink, provider, *roce = columns
    if not _TYPE.match(instance_type):
        raise ProfileError(f"{where}: type {instance_type[:40]!r}; write an instance type such as p5.48xlarge")
    if nvlink not in ("true", "false"):
        raise ProfileError(f"{where}: nvlink {nvlink[:40]!r}; write true or false")
    return InstanceProfile(
        instance_type.removeprefix("ml."),
        _count(gpus, "gpus", where),
        _count(efa, "efa", where),
        nvlink == "true",
        "" if provider == "-" else provider,
        _count(roce[0], "roce", where) if roce else 0,
    )


def _count(value: str, key: str, where: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > 9 or int(value) > _MOST:
        raise ProfileError(f"{where}: {key} {value[:40]!r}; write a whole number from 0 to {_MOST}")
    return int(value)
