"""A reset with a defect of ours: the function of `steps` that the variable DEFECT names raises an exception."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from gpu_healthcheck.repair import __main__ as program
from gpu_healthcheck.repair import steps


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("a defect")


if __name__ == "__main__":
    assert callable(vars(steps)[os.environ["DEFECT"]])
    vars(steps)[os.environ["DEFECT"]] = fail
    sys.exit(program.main())
