"""`gpu-healthcheck version`: the version of this program."""

from __future__ import annotations

import healthcheck
from cli.options import JsonOrYaml
from cli.output.json_documents import write_as
from healthcheck.host.streams import write_document


def version(output: JsonOrYaml = None) -> None:
    """Print the version."""
    if output:
        write_as(output, {"version": healthcheck.__version__})
    else:
        write_document(f"{healthcheck.__version__}\n")
