"""Configuration schema of the chart as an Amazon EKS add-on: the values that a user of the add-on may set.

Rules: https://docs.aws.amazon.com/marketplace/latest/userguide/container-product-policies.html#eks-addon-configuration
"""

from __future__ import annotations

import json
from typing import Any

import yaml

_DRAFT = "https://json-schema.org/draft-07/schema"
EXCLUDED = {
    "image": "the add-on's definition names it",
    "imagePullSecrets": "the image is in a registry of AWS Marketplace",
    "slim": "it selects another image",
    "agent.maxUnavailable": "AWS advises a fixed update strategy",
    "global": "it is for subcharts",
}
"""Values of the chart that the add-on does not offer, with the reason."""
_GROUPS = {
    "": f"Values of gpu-healthcheck. Excluded: {'; '.join(f'{name} ({why})' for name, why in EXCLUDED.items())}.",
    "agent": "The agent, a pod on each GPU node.",
    "sweeper": "The sweeper, which creates sweep Jobs.",
    "sweep": "Sweep Jobs, which test idle nodes.",
    "quarantine": "Quarantine Jobs, which test cordoned nodes.",
    "reset": "Reset Jobs, which reset the GPUs of a node.",
    "settings": "Keys of the ConfigMap gpu-healthcheck-config.",
}
"""Descriptions of groups of values. Groups with a value `enabled` have the description of that value."""


def schema(chart_schema: str, values: str) -> str:
    """Return the configuration schema, from values.schema.json and values.yaml."""
    whole = {"$schema": _DRAFT} | _schema("", json.loads(chart_schema), yaml.safe_load(values))
    # AWS rejects properties whose names are not camelCase. Here the settings are keys of a map, not properties.
    settings = whole["properties"]["settings"]
    settings["patternProperties"] = {f"^{key}$": field for key, field in settings.pop("properties").items()}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _schema(path: str, declared: dict[str, Any], default: Any) -> dict[str, Any]:
    """Return the schema of a value or a group, with defaults and without `required`: values.yaml has every value."""
    if "description" in declared:
        return _described(path, declared) | {"default": default}
    fields = {f"{path}.{name}".strip("."): (name, field) for name, field in declared["properties"].items()}
    offered = {name: _schema(key, field, default[name]) for key, (name, field) in fields.items() if key not in EXCLUDED}
    description = _GROUPS[path] if path in _GROUPS else offered["enabled"]["description"]
    return {"type": "object", "description": description, "properties": offered, "additionalProperties": False}


def _described(name: str, declared: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with a description of each nested field, which AWS requires."""
    result = {"description": f"{name}, as in the Kubernetes API.", **declared}
    if "properties" in declared:
        result["properties"] = {key: _described(key, field) for key, field in declared["properties"].items()}
    return result | ({"items": _described("entry", declared["items"])} if "items" in declared else {})
