"""`python -m agent`, lean: unused parts of the libraries are left out while the program is imported."""

from __future__ import annotations

import gc
import sys

from gpu_healthcheck.agent.process.unused_modules import without_unused_parts


def main() -> int:
    gc.disable()  # imported modules stay loaded: collecting them again finds nothing
    with without_unused_parts():
        from gpu_healthcheck.agent.process.agent_program import main as run  # noqa: PLC0415 - after the setup above
    gc.enable()
    return run()


if __name__ == "__main__":
    sys.exit(main())
