"""`python -m agent`, lean: unused parts of the libraries are left out while the program is imported."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress

from agent.unused_modules import without_unused_parts


def main() -> int:
    gc.disable()  # what is imported stays: there is nothing to find by walking through it again and again
    with without_unused_parts():
        from agent.settings_reader import SettingsReader  # noqa: PLC0415 - not before

        reader = SettingsReader()  # by a child process, which takes less long than what is imported meanwhile
        from agent.agent_program import main as run  # noqa: PLC0415
    gc.collect()  # but for the classes that others have taken the place of
    gc.enable()
    with suppress(AttributeError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)  # what importing has freed would stay ours for good, more than a MiB
    return run(reader=reader)


if __name__ == "__main__":
    sys.exit(main())
