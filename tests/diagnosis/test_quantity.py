"""Amounts as Kubernetes writes them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gpu_healthcheck.diagnosis.facts.quantity import amount, shown


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", Decimal(8)),
        ("1500m", Decimal("1.5")),
        ("0.5", Decimal("0.5")),
        (".5", Decimal("0.5")),
        ("64Gi", Decimal(64 << 30)),
        ("1k", Decimal(1000)),
        ("2E", Decimal(2 * 10**18)),
        ("1e3", Decimal(1000)),
        ("12E2", Decimal(1200)),
        ("100n", Decimal("0.0000001")),
        ("-1", Decimal(-1)),
        ("", None),
        ("8 GPUs", None),
        ("1ki", None),
        ("9" * 40, None),
        ("1e99", Decimal(2**63 - 1)),
        ("-99999999999999999999E", Decimal(1 - 2**63)),
        ("1e999", None),
        ("NaN", None),
        ("\u0661", None),
    ],
)
def test_amount_is_parsed_as_by_the_api_server(text: str, value: Decimal | None) -> None:
    assert amount(text) == value


@pytest.mark.parametrize(
    ("resource", "value", "text"),
    [
        ("memory", Decimal(64 << 30), "64Gi"),
        ("memory", Decimal(1536 << 20), "1.5Gi"),
        ("cpu", Decimal("1.5"), "1.5"),
        ("nvidia.com/gpu", Decimal(8), "8"),
        ("nvidia.com/gpu", Decimal(100), "100"),
        ("nvidia.com/gpu", Decimal(0), "0"),
    ],
)
def test_amount_is_formatted_for_people(resource: str, value: Decimal, text: str) -> None:
    assert shown(resource, value) == text
