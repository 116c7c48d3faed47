"""The ConfigMap as the agents read it: its valid values, and the keys without effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpu_healthcheck.cli import index

if TYPE_CHECKING:
    from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings
    from gpu_healthcheck.healthcheck.settings.node_overrides import ValueInForce
    from gpu_healthcheck.healthcheck.settings.reading import Settings


class JudgedConfig(Struct, frozen=True):
    """Settings of a ConfigMap, without those of this machine's environment; and its keys without effect."""

    settings: Settings
    unknown: tuple[str, ...]
    reasons: tuple[str, ...]
    """A text for each invalid value, and one for all unknown keys."""

    @property
    def unused(self) -> tuple[str, ...]:
        return (*(value.key for value in self.settings.bad), *self.unknown)


def judged(written: Mapping[str, str]) -> JudgedConfig:
    from gpu_healthcheck.healthcheck.settings.reading import as_folder, read_settings, unknown_keys  # noqa: PLC0415 - loads pydantic

    with as_folder(written) as folder:
        settings, unknown = read_settings(folder), unknown_keys(folder)
    bad = tuple(value for value in settings.bad if value.where.startswith(str(folder)))
    reasons = [*(value.words for value in bad), *([str(unknown)] if unknown else ())]
    texts = tuple(text.replace(f"{folder}/", "").removeprefix(f"{folder}: ") for text in reasons)
    return JudgedConfig(replace(settings, bad=bad), tuple(key for key, _ in unknown.keys) if unknown else (), texts)


def values_of_groups(written: Mapping[str, str]) -> NodeSettings | None:
    """Return the values if `node-overrides` sets any. The reader of the settings is loaded only then."""
    return judged(written).settings.values if written.get("node-overrides", "").strip() else None


def values_on(written: Mapping[str, str], labels: Mapping[str, str]) -> tuple[ValueInForce, ...]:
    """Return, for a node with these labels, the values that a line of `node-overrides` sets or that are not defaults.

    Only keys that a line can set.
    """
    if not (edited := _edited(written)):
        return ()
    from gpu_healthcheck.healthcheck.settings.node_overrides import values_in_force  # noqa: PLC0415 - loads pydantic

    return tuple(values_in_force(judged(edited).settings.values, labels))


def unused_keys(written: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys without effect. The reader of the settings is loaded only if a value is not the default."""
    return judged(edited).unused if (edited := _edited(written)) else ()


def _edited(written: Mapping[str, str]) -> dict[str, str]:
    defaults = index.defaults()
    return {key: value for key, value in written.items() if defaults.get(key) != value}
