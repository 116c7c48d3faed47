"""Facts as a file of evidence contains them."""

from __future__ import annotations

import json
from typing import Any

from gpu_healthcheck.healthcheck.captures.evidence_file import from_plain, plain


def saved_and_read(facts: Any, kind: Any = None) -> Any:
    return from_plain(kind or type(facts), json.loads(json.dumps(plain(facts))))
