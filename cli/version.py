"""`gpu-healthcheck version`: the version of this program."""

from __future__ import annotations

from gpu_healthcheck import healthcheck
from gpu_healthcheck.cli.options import JsonOrYaml
from gpu_healthcheck.cli.output.json_documents import write_as
from gpu_healthcheck.healthcheck.host.streams import write_document


def version(output: JsonOrYaml = None) -> None:
    """Print the version."""
    if output:
        write_as(output, {"version": healthcheck.__version__})
    else:
        write_document(f"{healthcheck.__version__}\n")
