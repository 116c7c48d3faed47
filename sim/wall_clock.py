"""Wall clock of a process and its children that can be set while they run; monotonic clocks are unchanged."""

import os
import struct
from pathlib import Path

from gpu_healthcheck.sim import c_library

SOURCE = Path(__file__).parent / "wall_clock.c"


class WallClock:
    """Wall clock in a file whose path the test chooses."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.write_bytes(struct.pack("=q", 0))
        self.ahead = 0

    @property
    def environment(self) -> dict[str, str]:
        """Return additions to a program's environment."""
        preloaded = [str(c_library.build(SOURCE, "wall-clock")), os.environ.get("LD_PRELOAD", "")]
        return {"LD_PRELOAD": " ".join(filter(None, preloaded)), "WALL_CLOCK_FILE": str(self.file)}

    def step(self, seconds: int) -> None:
        """Set the clock forward or back."""
        self.ahead += seconds
        with self.file.open("r+b") as file:  # in place: it is mapped
            file.write(struct.pack("=q", self.ahead))
