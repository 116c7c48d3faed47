"""Garbage collection of cycles is enabled again, however a command ends."""

from __future__ import annotations

import gc

import pytest

from cli.acyclic import acyclic


def test_cycles_are_not_looked_for_meanwhile_and_are_afterwards() -> None:
    assert gc.isenabled()
    with acyclic():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_they_are_after_an_error_too() -> None:
    with pytest.raises(LookupError), acyclic():
        raise LookupError
    assert gc.isenabled()
