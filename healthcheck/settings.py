"""What a cluster can set: the files of the mounted ConfigMap, then the environment, then the defaults.

A value that is not allowed is named with its file, its key, what it is and what is allowed; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct, field
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SecretsSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from healthcheck.catalog.policy import Policy, parse_overrides
from healthcheck.catalog.profiles import PROFILES_FILE, ProfileError, Profiles, parse_profiles, read_packaged
from healthcheck.checks import CHECKS, groups_in, select_checks
from healthcheck.host.opening import entries_of, refuse_shortage
from healthcheck.model import Check, Severity
from healthcheck.node.state import REPAIR_CONDITIONS
from healthcheck.probes.dcgm.diag import checked_host
from healthcheck.text.printable import printable
from healthcheck.verdict.change import Rules
from healthcheck.verdict.repair import Repair

OVERRIDES = "severity-overrides"
_LEAST_MEGABYTES, _MEGABYTES_A_GIGABIT = 500, 125
_LONGEST_FILE = 1 << 20
_MOST_NAMED, _LONGEST_KEY = 8, 64
_LONGEST_NODE_NAME, _LAST_PORT = 253, 65535
_LOG_LEVELS = ("debug", "info", "warning", "error")
_SEVERITIES = "MONITOR, RESET, REBOOT or ISOLATE"


class BadValue(Struct, frozen=True):
    """One value that is not allowed. `where` is a file or an environment variable."""

    key: str
    value: str
    allowed: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key} = {self.value!r}: {self.allowed}"


class UnknownKeys(Struct, frozen=True):
    """Keys of the configuration that are no setting, each with the setting that it may stand for, or ''."""

    keys: tuple[tuple[str, str], ...]
    where: str

    def __str__(self) -> str:
        named = [f"{key} (did you mean {near}?)" if near else key for key, near in self.keys[:_MOST_NAMED]]
        more = f" and {len(self.keys) - _MOST_NAMED} more" if len(self.keys) > _MOST_NAMED else ""
        return f"{self.where}: no setting is called {', '.join(named)}{more}; the others count"


class SettingsError(Exception):
    """The settings as they are written can't be used."""

    def __init__(self, bad: tuple[BadValue, ...]) -> None:
        super().__init__("; ".join(str(one) for one in bad))
        self.bad = bad


def _severity(value: Any) -> Any:
    if isinstance(value, str):
        if value.strip() not in Severity.__members__ or value.strip() == "PASS":
            raise ValueError(f"allowed are {_SEVERITIES}")
        return Severity[value.strip()]
    return value


def _repair_severity(value: Any) -> Any:
    """A milder one would cost a machine for what a reset mends."""
    if isinstance(value, str) and value.strip() not in ("REBOOT", "ISOLATE"):
        raise ValueError("allowed are REBOOT or ISOLATE")
    return _severity(value)


def _repair_conditions(value: str) -> str:
    if unknown := [one for one in _listed(value) if one not in REPAIR_CONDITIONS]:
        allowed = ", ".join(REPAIR_CONDITIONS)
        raise ValueError(
            f"no condition {printable(unknown[0], _LONGEST_KEY)!r}; allowed are {allowed}, with commas between"
        )
    return value


def _listed(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


def _checks(value: str) -> str:
    if not select_checks(value.split()):
        # A node that nothing looks at would be said to be well.
        raise ValueError(f"names no check that a light look runs; {groups_in(CHECKS)} have some")
    return value


def _overrides(value: str) -> str:
    parse_overrides(value)
    return value


def _namespace(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", value):
        raise ValueError("the name of a namespace: at most 63 lower-case letters, digits and hyphens")
    return value


def _megabytes(value: int) -> int:
    """The bash suite counted EFA's bandwidth in Gbps; no EFA device is as slow as such a number of MB/s."""
    if 0 < value < _LEAST_MEGABYTES:
        raise ValueError(
            f"MB/s are meant, 0 or {_LEAST_MEGABYTES} to 1000000, and it reads like Gbps: "
            f"{value} Gbps are {value * _MEGABYTES_A_GIGABIT} MB/s"
        )
    return value


def _node_name(value: str) -> str:
    if not 1 <= len(value) <= _LONGEST_NODE_NAME:
        raise ValueError(f"the name of a Node, of 1 to {_LONGEST_NODE_NAME} characters, is wanted")
    return value


def _log_level(value: str) -> str:
    if value not in _LOG_LEVELS:
        raise ValueError(f"allowed are {', '.join(_LOG_LEVELS)}")
    return value


def _port(value: int | str) -> int:
    number = int(value) if re.fullmatch(r"[0-9]{1,5}", str(value).strip(), re.ASCII) else -1
    if not 0 <= number <= _LAST_PORT:
        raise ValueError(f"a whole number, 0 to {_LAST_PORT}")
    return number


def _folder(value: Path) -> Path:
    """An empty variable would be the folder where the program stands."""
    if not value.is_absolute():
        raise ValueError("the path of a folder from the root, beginning with /")
    return value


NodeName = Annotated[str, AfterValidator(_node_name)]
LogLevel = Annotated[str, AfterValidator(_log_level)]
Port = Annotated[int, BeforeValidator(_port)]
Folder = Annotated[Path, AfterValidator(_folder)]
"""Of the programs' own variables; these four are no keys of the ConfigMap."""
HostName = Annotated[str, AfterValidator(checked_host)]
SeverityName = Annotated[Severity, BeforeValidator(_severity)]
RepairSeverity = Annotated[Severity, BeforeValidator(_repair_severity)]


class NodeSettings(BaseSettings):
    """The keys of the ConfigMap that judging and applying read, under their names there."""

    model_config = SettingsConfigDict(extra="ignore", case_sensitive=True, populate_by_name=True)

    check_interval_seconds: int = Field(300, alias="CHECK_INTERVAL", ge=10, le=86400)
    """Between two light looks."""
    check_timeout_seconds: int = Field(900, alias="CHECK_TIMEOUT", ge=1, le=172800)
    """A whole light cycle at most; see `cycle_seconds`."""
    checks_lightweight: Annotated[str, AfterValidator(_checks)] = Field("0 2 3 7 8", alias="CHECKS_LIGHTWEIGHT")
    """Numbers of groups, names of groups, or names of checks."""
    dcgm_host: HostName = Field("", alias="DCGM_HOST")
    """The hostengine that runs DCGM's diagnostic, as host:port; empty: the diagnostic starts one of its own."""
    dcgm_timeout_seconds: int = Field(900, alias="DCGM_TIMEOUT", ge=60, le=86400)
    dcgm_l4_timeout_seconds: int = Field(9000, alias="DCGM_L4_TIMEOUT", ge=60, le=172800)
    """Level 2, and level 4, at most, each with what of it is run again."""
    enable_taint: bool = Field(True, alias="ENABLE_TAINT")
    enable_label: bool = Field(True, alias="ENABLE_LABEL")
    taint_severity: SeverityName = Field(Severity.RESET, alias="TAINT_SEVERITY")
    max_unhealthy_percent: int = Field(20, alias="MAX_UNHEALTHY_PERCENT", ge=1, le=100)
    """Of the fleet's nodes, how many may carry our taint at the same time; always at least one."""
    repair_conditions: Annotated[str, AfterValidator(_repair_conditions)] = Field("", alias="REPAIR_CONDITIONS")
    """The conditions that are written for repairers, with commas between; empty: none."""
    repair_severity: RepairSeverity = Field(Severity.ISOLATE, alias="REPAIR_SEVERITY")
    """The mildest severity with which AcceleratedHardwareReady is False."""
    device_taints: bool = Field(False, alias="DEVICE_TAINTS")
    """Whether a bad GPU that DRA gives out is tainted instead of its node, where the cluster can."""
    monitor_ttl_seconds: int = Field(86400, alias="MONITOR_TTL", ge=60, le=31536000)
    """How long a MONITOR event stands after it was last seen."""
    escalate_after: int = Field(2, alias="ESCALATE_AFTER", ge=0, le=100)
    """Resets or reboots within 7 days after which the same fault of a GPU is ISOLATE; 0: never."""
    max_retired_pages_sbe: int = Field(60, alias="MAX_RETIRED_PAGES_SBE", ge=1, le=4096)
    """Pages of a GPU's memory retired for errors, before Ampere; more are a fault."""
    efa_min_bandwidth: Annotated[int, AfterValidator(_megabytes)] = Field(0, alias="EFA_MIN_BW", ge=0, le=1_000_000)
    """MB/s that each EFA device has to reach with itself in quarantine; 0: shown, not judged."""
    efa_test_timeout_seconds: int = Field(180, alias="EFA_TEST_TIMEOUT", ge=10, le=3600)
    """For each side of one run of fi_pingpong, of which an EFA device gets two."""
    nccl_min_bus_bandwidth: int = Field(0, alias="NCCL_MIN_BUS_BW", ge=0, le=10_000)
    """GB/s of bus bandwidth that an all-reduce has to reach in quarantine; 0: a share of the instance type's figure."""
    nccl_timeout_seconds: int = Field(600, alias="NCCL_TIMEOUT", ge=60, le=86400)
    """For the all-reduce. One that does not end in it is a fault."""
    severity_overrides: Annotated[str, AfterValidator(_overrides)] = Field("", alias="severity-overrides")
    nvlink_default: SeverityName = Field(Severity.RESET, alias="NVLINK_DEFAULT")
    nvlink5_default: SeverityName = Field(Severity.MONITOR, alias="NVLINK5_DEFAULT")
    strict_pshc: bool = Field(False, alias="STRICT_PSHC")
    dcgm_l2_interval_seconds: int = Field(21600, alias="DCGM_L2_INTERVAL", ge=0, le=31536000)
    """Each idle node is tested deeply once in it; 0: never."""
    max_nodes_per_sweep: int = Field(10, alias="MAX_NODES_PER_SWEEP", ge=1, le=5000)
    """Under a sweep at the same time."""
    max_sweep_percent: int = Field(20, alias="MAX_SWEEP_PERCENT", ge=1, le=100)
    """Of the nodes of one instance type, how many may be under a deep run at the same time; always at least one."""
    job_timeout_seconds: int = Field(900, alias="JOB_TIMEOUT", ge=60, le=86400)
    """What a Job may take beyond DCGM itself: to be placed, to pull its image, to tell."""
    sweep_namespace: Annotated[str, AfterValidator(_namespace)] = Field("gpu-healthcheck", alias="SWEEP_NAMESPACE")
    """Of the Jobs."""
    kernel_log_lines: str = Field("", alias="KERNEL_LOG_LINES")
    """Accepted for the sake of old ConfigMaps; a cursor took its place."""
    sweep_image: str = Field("", alias="SWEEP_IMAGE")
    """Accepted for the sake of old ConfigMaps; the template's image is the one, which a policy holds Jobs to."""

    @property
    def checks(self) -> tuple[Check, ...]:
        return select_checks(self.checks_lightweight.split())

    @property
    def cycle_seconds(self) -> float:
        """The most a light cycle may take: never longer than two intervals."""
        return min(self.check_timeout_seconds, 2 * self.check_interval_seconds)

    @property
    def probe_seconds(self) -> float:
        """The deadline of one light probe."""
        return min(self.cycle_seconds, 60.0)

    @cached_property
    def policy(self) -> Policy:
        return Policy(
            parse_overrides(self.severity_overrides), self.nvlink_default, self.nvlink5_default, self.strict_pshc
        )

    @property
    def rules(self) -> Rules:
        repair = Repair(_listed(self.repair_conditions), self.repair_severity)
        return Rules(
            taint_severity=self.taint_severity,
            enable_taint=self.enable_taint,
            enable_label=self.enable_label,
            max_unhealthy_percent=self.max_unhealthy_percent,
            device_taints=self.device_taints,
            repair=repair,
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The ConfigMap's files come before the environment: what was edited last is what counts."""
        del dotenv_settings
        if isinstance(file_secret_settings, SecretsSettingsSource):
            file_secret_settings = _ConfigMap(settings_cls, file_secret_settings.secrets_dir)
        return (init_settings, file_secret_settings, env_settings)


class _ConfigMap(SecretsSettingsSource):
    """The files as they are mounted. What is written in lines keeps those that stand empty before it."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value, key, is_complex = super().get_field_value(field, field_name)
        if key != field.alias:
            return None, key, is_complex  # a file that bears our own name of the field is no key of the ConfigMap
        if field.alias == OVERRIDES and isinstance(value, str) and isinstance(self.secrets_dir, Path):
            value = (self.secrets_dir / OVERRIDES).read_text(encoding="utf-8")
        return value, key, is_complex


class Settings(Struct, frozen=True):
    """All that was read in one go: the values and the table of profiles."""

    values: NodeSettings = field(default_factory=NodeSettings.model_construct)
    profiles: Profiles = field(default_factory=dict)
    bad: tuple[BadValue, ...] = ()


def read_settings(directory: Path | None) -> Settings:
    """Read the ConfigMap's directory and the environment anew.

    Raises SettingsError naming every bad value, and Shortage where nobody could look.
    """
    bad: list[BadValue] = []
    values = NodeSettings.model_construct()
    unreadable = tuple(_unreadable(directory))
    try:
        if not unreadable:
            values = NodeSettings(_secrets_dir=_existing(directory))  # type: ignore[call-arg]
    except ValidationError as error:
        bad.extend(_bad_values(error, directory))
    except SourceError as error:  # a file that was swapped while it was read
        if isinstance(error.__cause__, OSError):
            refuse_shortage(error.__cause__)
        bad.append(BadValue("?", "...", str(error), str(directory)))
    try:
        profiles = _read_profiles(directory)
    except (ProfileError, OSError) as error:
        if isinstance(error, OSError):
            refuse_shortage(error)
        profiles = {}
        bad.append(BadValue(PROFILES_FILE, "...", str(error), str(directory)))
    if bad or unreadable:
        raise SettingsError((*unreadable, *bad))
    return Settings(values, profiles)


def settings_despite(bad: tuple[BadValue, ...], directory: Path | None) -> Settings:
    """What a start without a good configuration goes on with: the defaults in the place of the bad values.

    A wrong word must not leave a node unwatched, nor undo what stands rightly beside it.
    """
    keys = {one.key for one in bad}
    fields = NodeSettings.model_fields.values()
    replaced = {str(one.alias): one.default for one in fields if one.alias in keys}
    try:
        values = NodeSettings(_secrets_dir=_existing(directory), **replaced)  # type: ignore[call-arg]
    except (ValidationError, SourceError, UnicodeError):
        values = NodeSettings.model_construct()
    try:
        profiles = _read_profiles(directory)
    except (ProfileError, OSError):
        profiles = packaged_profiles()
    return Settings(values, profiles, bad)


def unknown_keys(directory: Path | None) -> UnknownKeys | None:
    """The files that no setting is read from, such as one that was written wrongly; None where there are none."""
    known = [*(str(one.alias) for one in NodeSettings.model_fields.values()), PROFILES_FILE]
    # What begins with two dots is the kubelet's: no key of a ConfigMap does.
    found = sorted(_files(directory) - set(known))
    keys = [name for name in found if not name.startswith("..")]
    near = {name.lower(): name for name in known}
    told = tuple((printable(key, _LONGEST_KEY), _nearest(key, near)) for key in keys)
    return UnknownKeys(told, str(directory)) if told else None


def _nearest(key: str, known: Mapping[str, str]) -> str:
    """Upper and lower case are no difference; a long name is no mistyped one."""
    import difflib  # noqa: PLC0415 - the agent need not hold it for the day when somebody mistypes

    close = difflib.get_close_matches(key.lower(), known, 1) if len(key) <= _LONGEST_KEY else []
    return known[close[0]] if close else ""


def _files(directory: Path | None) -> set[str]:
    try:
        return {one.name for one in entries_of(directory) if not one.is_dir()} if directory else set()
    except OSError:
        return set()


@cache
def packaged_profiles() -> Profiles:
    return read_packaged()


def _existing(directory: Path | None) -> Path | None:
    return directory if directory is not None and directory.is_dir() else None


def _unreadable(directory: Path | None) -> Iterator[BadValue]:
    """The files that are no text, as a ConfigMap's `binaryData` can make them."""
    for key in (str(one.alias) for one in NodeSettings.model_fields.values()):
        path = directory / key if directory else None
        if path is None or not path.is_file():
            continue
        try:
            path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError):
                refuse_shortage(error)
            yield BadValue(key, str(error)[:80], "UTF-8 text that can be read", str(path))


def _read_profiles(directory: Path | None) -> Profiles:
    """The packaged table; a row of the ConfigMap stands before the packaged one of its type."""
    path = directory / PROFILES_FILE if directory else None
    if path is None or not path.is_file():
        return packaged_profiles()
    with path.open("rb") as file:
        text = file.read(_LONGEST_FILE + 1).decode("utf-8", "backslashreplace")
    return {**packaged_profiles(), **parse_profiles(text, str(path))}


def _bad_values(error: ValidationError, directory: Path | None) -> list[BadValue]:
    return [_bad_value(one, directory) for one in error.errors(include_url=False)]


def _bad_value(error: Mapping[str, Any], directory: Path | None) -> BadValue:
    key = str(error["loc"][0]) if error["loc"] else "?"
    in_directory = directory is not None and (directory / key).exists()
    where = str(directory / key) if in_directory and directory else "environment"
    return BadValue(key, str(error["input"]).strip()[:80], _allowed(key, error), where)


def _allowed(key: str, error: Mapping[str, Any]) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"].startswith("bool"):
        return "allowed are true and false, or 1 and 0"
    return bounds_of(key) or str(error["msg"])


def bounds_of(key: str) -> str:
    """What a setting that is a number may be; '' of any other."""
    fields = NodeSettings.model_fields.items()
    name, bounds = next(((name, _range(one)) for name, one in fields if one.alias == key), ("", ""))
    unit = " of seconds" if name.endswith("_seconds") else ""
    return f"a whole number{unit}, {bounds}" if bounds else ""


def _range(one: Any) -> str:
    low = next((bound.ge for bound in one.metadata if hasattr(bound, "ge")), None)
    high = next((bound.le for bound in one.metadata if hasattr(bound, "le")), None)
    return f"{low} to {high}" if low is not None else ""
