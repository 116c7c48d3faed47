"""Print all manifests as one file with the named image: `python -m tools.install_yaml IMAGE > install.yaml`.

The order is that of the manifests, with the policies directly after the namespaces, before all objects under them.
"""

from __future__ import annotations

import re
import sys

from tools.chart.keys import REPOSITORY
from tools.chart.manifest import documents
from tools.chart.templates import IMAGE, MANIFESTS

_REFERENCE = re.compile(rf"{REPOSITORY}(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}|@sha256:[0-9a-f]{{64}})")
"""Image reference with a tag or a digest."""
_FIRST = {"Namespace": 0, "ValidatingAdmissionPolicy": 1, "ValidatingAdmissionPolicyBinding": 1}


def install_yaml(image: str) -> str:
    """Return the contents of the file. Raises ValueError if the image has neither tag nor digest."""
    if not _REFERENCE.fullmatch(image):
        raise ValueError(f"{image}: the image must be REPOSITORY:TAG or REPOSITORY@sha256:DIGEST")
    files = sorted(MANIFESTS.glob("*.yaml"))
    found = [document for file in files for document in documents(file.read_text())]
    found.sort(key=lambda document: _FIRST.get(document.identity[0], len(_FIRST)))
    return "".join(f"---\n{document.text}" for document in found).replace(IMAGE, image)


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m tools.install_yaml IMAGE\n")
        return 3
    try:
        sys.stdout.write(install_yaml(sys.argv[1]))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
