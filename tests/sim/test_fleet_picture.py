"""Content of the fleet page that the picture in the documentation shows."""

from __future__ import annotations

from sim import fleet_picture


def test_the_picture_shows_a_fleet_with_findings_in_one_rack() -> None:
    page = fleet_picture.page().decode()

    assert "GPU fleet, 5 of 40 nodes faulty" in page
    assert "4 of 5 faulty nodes are in rack" in page
    assert all(f"<code>{reason}</code>" in page for faults in fleet_picture.FAULTS.values() for reason, *_ in faults)


def test_the_picture_is_small() -> None:
    assert 0 < fleet_picture.PICTURE.stat().st_size < 200_000
