"""The configuration schema of the Amazon EKS add-on: the values of the chart that AWS lets a user set."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from tests.chart.test_readme import EXAMPLES
from tools import chart
from tools.chart import keys, settings
from tools.chart.eks_addon import EXCLUDED

SCHEMA = json.loads(chart.EKS_SCHEMA.read_text())
JUDGE = jsonschema.Draft7Validator(SCHEMA)
VALUES = yaml.safe_load((chart.CHART / "values.yaml").read_text())
CHART_VALUES = {*(key.name for key in keys.KEYS), *(f"settings.{name}" for name in settings.names()), "global"}
Named = Iterator[tuple[str, dict[str, Any]]]


def properties(schema: dict[str, Any]) -> Named:
    """Yield path and schema of each property, also of those inside values."""
    for name, field in schema.get("properties", {}).items():
        yield name, field
        yield from ((f"{name}.{inner}", nested) for inner, nested in properties(field))
    for part in [schema["items"]] if "items" in schema else schema.get("patternProperties", {}).values():
        yield from properties(part)


def offered(schema: dict[str, Any], path: str = "") -> Named:
    """Yield dotted name and schema of each value with a default."""
    for name, field in (schema.get("properties", {}) | schema.get("patternProperties", {})).items():
        full = f"{path}.{name.strip('^$')}".strip(".")
        yield from [(full, field)] if "default" in field else offered(field, full)


def test_eks_schema_has_the_draft_that_aws_lists() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)

    assert SCHEMA["$schema"] == "https://json-schema.org/draft-07/schema"


def test_eks_schema_offers_each_value_of_the_chart_or_excludes_it_with_a_reason() -> None:
    groups = {name: {value for value in CHART_VALUES if f"{value}.".startswith(f"{name}.")} for name in EXCLUDED}

    assert {name for name, _ in offered(SCHEMA)} == CHART_VALUES - set().union(*groups.values())
    assert [name for name, values in groups.items() if not values or not EXCLUDED[name]] == []


def test_eks_schema_has_camel_case_names_and_descriptions() -> None:
    assert [path for path, _ in properties(SCHEMA) if not re.fullmatch("[a-z][A-Za-z]*", path.rpartition(".")[2])] == []
    assert [path for path, field in properties(SCHEMA) if not field.get("description")] == []


def test_eks_schema_has_the_defaults_of_the_chart() -> None:
    for name, field in offered(SCHEMA):
        group, _, key = name.partition(".")
        assert field["default"] == (VALUES[group][key] if key else VALUES[group]), name
        assert list(jsonschema.Draft7Validator(field).iter_errors(field["default"])) == [], name


@pytest.mark.parametrize("name", EXAMPLES)
def test_eks_schema_allows_the_examples(name: str) -> None:
    assert list(JUDGE.iter_errors(yaml.safe_load(EXAMPLES[name]))) == []


@pytest.mark.parametrize(
    "name", ["image", "imagePullSecrets", "slim", "global", "agent.maxUnavailable", "settings.ENABLE_TAINTS"]
)
def test_eks_schema_refuses_other_values_by_name(name: str) -> None:
    *group, key = name.split(".")
    (error,) = JUDGE.iter_errors({group[0]: {key: 1}} if group else {key: {}})

    assert error.json_path == ".".join(["$", *group])
    assert f"'{key}'" in error.message
