"""Explanation of each key of the ConfigMap, for `gpu-healthcheck explain`."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.catalog.profiles import PROFILES_FILE
from healthcheck.settings.declared import settings_of
from healthcheck.settings.values import NodeSettings

PROFILES_MEANING = "Expected devices of an instance type, one type per line: type|gpus|efa|nvlink|provider[|roce]."


def settings_in_words() -> Iterator[tuple[str, str]]:
    """Yield key and meaning of each setting; the meaning ends with bounds and default."""
    for key, setting in settings_of(NodeSettings).items():
        details = [setting.allowed] if setting.bounds else []
        if setting.default != "":
            details.append(f"default {setting.written_default}")
        yield key, f"{setting.meaning} ({', '.join(details)})" if details else setting.meaning
    yield PROFILES_FILE, PROFILES_MEANING
