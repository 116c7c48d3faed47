"""Files of earlier versions, as `python -m tests.upgrade FROM --save FOLDER` captured them."""

from pathlib import Path

FOLDER = Path(__file__).parent
