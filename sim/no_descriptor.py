"""Simulate a shortage of file descriptors at one open of this thread, or from it on, by Python's audit events."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_OPENINGS = frozenset({"open", "os.listdir", "os.scandir", "socket.__new__", "subprocess.Popen"})


class Shortage:
    """`met`: the number of refused opens; `went_on`: whether another open was tried after the first refused one."""

    def __init__(self, first: int, *, lasting: bool) -> None:
        self._thread = threading.get_ident()
        self._left = first
        self._lasting = lasting
        self.met = 0
        self.went_on = False

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in _OPENINGS or threading.get_ident() != self._thread:
            return
        if event == "open" and isinstance(arguments[0], int):
            return  # a file around a descriptor that is open already
        self._left -= 1
        self.went_on |= self._left < 0
        if self._left == 0 or (self._lasting and self._left < 0):
            self.met += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


_active: list[Shortage] = []
_hooked = threading.Event()


@contextmanager
def no_descriptor(first: int, *, lasting: bool) -> Iterator[Shortage]:
    """Refuse the `first` open (1, 2, …) as without a free descriptor, and with `lasting` all later ones."""
    if not _hooked.is_set():
        _hooked.set()
        sys.addaudithook(_hear)  # an audit hook can't be removed
    shortage = Shortage(first, lasting=lasting)
    _active.append(shortage)
    try:
        yield shortage
    finally:
        _active.remove(shortage)


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    for shortage in _active:
        shortage.hear(event, arguments)
