"""Plan a sweep without running it: print the seconds since the first request, and the result."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from gpu_healthcheck.healthcheck.cluster.client import Cluster
from gpu_healthcheck.healthcheck.settings.reading import read_settings
from gpu_healthcheck.sweeper.sweep import Sweep


def main() -> None:
    sweep = Sweep(Cluster(), read_settings(Path(os.environ["CONFIG_DIR"])).values)
    began = time.monotonic()
    plan = sweep.plan()
    seconds = time.monotonic() - began
    taken = sum(not decision.why for decision in plan.decisions)
    busy = sum(decision.why.startswith("in use") for decision in plan.decisions)
    json.dump({"seconds": seconds, "nodes": len(plan.decisions), "taken": taken, "busy": busy}, sys.stdout)


if __name__ == "__main__":
    main()
