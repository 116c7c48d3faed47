"""Last valid texts of the ConfigMap, in a file on the node: after a restart they replace those that are invalid then.

Only the reader of the settings judges them: a text that this version rejects is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from healthcheck.host import node_file
from healthcheck.model import Shortage

_NAME = "settings.json"
_LONGEST = 8 << 20
"""A ConfigMap has at most 1 MiB, and a character takes at most six bytes in JSON."""


def load(folder: Path) -> dict[str, str]:
    """Return the texts by key; none if the file is missing, too long or damaged."""
    try:
        return msgspec.json.decode(node_file.read_start(folder / _NAME, _LONGEST), type=dict[str, str])
    except (OSError, Shortage, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def save(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the texts if they changed. Raises OSError; a restart then knows the earlier ones."""
    if texts != load(folder):
        node_file.replace_whole(folder / _NAME, msgspec.json.encode(dict(texts)))
