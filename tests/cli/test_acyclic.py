"""Garbage collection of cycles is enabled again, however a command ends."""

from __future__ import annotations

import gc

import pytest

from gpu_healthcheck.cli.access import acyclic


def test_acyclic_disables_garbage_collection_until_its_end() -> None:
    assert gc.isenabled()
    with acyclic():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_acyclic_enables_garbage_collection_after_an_error() -> None:
    with pytest.raises(LookupError), acyclic():
        raise LookupError
    assert gc.isenabled()
