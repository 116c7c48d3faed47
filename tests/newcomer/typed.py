"""The commands of our documents, as a user types them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpu_healthcheck.sim.real_node.images import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROMPT = "$ "
_COMMENT = re.compile(r"\s+# .*")


def shown(document: str, begins: str, words: Mapping[str, str]) -> str:
    """Return the only command of a document with this beginning, without its comment, with values for its capitals."""
    text = (REPOSITORY / document).read_text().replace("\\\n", "")
    lines = {line.removeprefix(_PROMPT) for line in text.splitlines() if line.startswith(_PROMPT + begins)}
    assert len(lines) == 1, f"{document} has {len(lines)} commands that begin with {begins!r}"
    (line,) = lines
    for name, value in words.items():
        line = re.sub(rf"(?<!\w){name}(?!\w)", value, line)
    return _COMMENT.sub("", line)
