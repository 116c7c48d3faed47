"""`python -m agent`, lean: unused parts of the libraries are left out while the program is imported."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress

from agent.process.unused_modules import without_unused_parts


def main() -> int:
    gc.disable()  # imported modules stay loaded: collecting them again finds nothing
    with without_unused_parts():
        from agent.process.settings_reader import SettingsReader  # noqa: PLC0415 - after the setup above

        reader = SettingsReader()  # in a child process, in parallel with the imports below
        from agent.process.agent_program import main as run  # noqa: PLC0415
    gc.collect()  # frees the classes that were replaced during the imports
    gc.enable()
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)  # memory freed by the imports, more than a MiB, would otherwise stay allocated
    return run(reader=reader)


if __name__ == "__main__":
    sys.exit(main())
