"""`python -m agent`, lean: unused parts of the libraries are left out while the program is imported."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

from agent.unused_modules import without_unused_parts


def main() -> int:
    with without_unused_parts():
        from agent.program import main as run  # noqa: PLC0415 - not before
    with suppress(AttributeError):  # glibc's; what importing has freed would stay ours for good, more than a MiB
        ctypes.CDLL(None).malloc_trim(0)
    return run()


if __name__ == "__main__":
    sys.exit(main())
