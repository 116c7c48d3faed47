"""Find faults in HAMi's own configuration: an unreadable file, or settings under the wrong keys."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts.commands import kubectl
from diagnosis.hami.installation import is_there
from diagnosis.hami.settings import DEVICE_CONFIG, KEYS, read_settings
from diagnosis.model import CauseSeverity, Family, FoundCause, Search
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.cluster_objects import ConfigMap

_SOURCE = "HAMi, pkg/scheduler/config, and its chart's templates/scheduler/device-configmap.yaml"
_fault = Family(None)
UNREADABLE = _fault(
    "HamiConfigurationUnreadable",
    "HAMi's device configuration is invalid YAML: its scheduler and device plugins can't restart with it.",
    "Fix the document, then restart the scheduler and the device plugins.",
    source=_SOURCE,
)
MISPLACED = _fault(
    "HamiSettingMisplaced",
    "A HAMi setting for NVIDIA's cards is outside of `nvidia:` in the configuration, so it has no effect.",
    "Move it under `nvidia:`, then restart the scheduler and the device plugins.",
    severity=CauseSeverity.MEDIUM,
    source=_SOURCE,
)


def find(snapshot: Snapshot) -> Iterator[FoundCause]:
    """Yield unreadable files and misplaced settings, one result of each kind per ConfigMap."""
    for config_map in snapshot.config_maps if is_there(snapshot) else ():
        if DEVICE_CONFIG not in config_map.data:
            continue
        settings = read_settings(config_map)
        if settings.unreadable:
            yield FoundCause(
                UNREADABLE, config_map.meta.subject, (f"{DEVICE_CONFIG}: {settings.unreadable}",), (_edit(config_map),)
            )
        # Other versions may accept other keys. Only a key that is known elsewhere is certainly misplaced.
        stray = [key for key in settings.odd if key.path in KEYS]
        if stray:
            evidence = tuple(f"{DEVICE_CONFIG}: {key.path} is set, and HAMi reads {key.meant}" for key in stray)
            yield FoundCause(MISPLACED, config_map.meta.subject, evidence, (_edit(config_map),))


def _edit(config_map: ConfigMap) -> str:
    edit = kubectl("edit", config_map.meta)
    return f"Fix {DEVICE_CONFIG}, in its Helm values or directly: {edit}. HAMi's pods read it when they start."


SEARCHES = (Search((UNREADABLE, MISPLACED), ("ConfigMap",), find),)
