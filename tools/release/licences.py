"""`python -m tools.release.licences [--check]`: the licences of the image's Python packages, in docs/licences.md."""

from __future__ import annotations

import re
import sys
from email.message import Message
from importlib import metadata

from tools.release.origin import REPOSITORY
from tools.release.running import ReleaseError

PAGE = REPOSITORY / "docs" / "licences.md"
BEGIN, END = "<!-- packages: begin (make docs) -->\n", "<!-- packages: end -->\n"
_LOCKED = re.compile(r"^([\w.-]+)==([^\s\\;]+)", re.MULTILINE)
_UNINSTALLED = re.compile(r"uninstall --yes --quiet \\\n(.*?) \\\n", re.DOTALL)
_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License": "ISC",
    "MIT License": "MIT",
}
"""SPDX names (https://spdx.org/licenses/) of licences that packages name in free text; BSD if unspecified."""


def in_the_image(requirements: str, dockerfile: str) -> dict[str, str]:
    """Return the versions of locked packages that the image keeps, by name; pure."""
    left_out = {name for words in _UNINSTALLED.findall(dockerfile) for name in words.split()}
    return {name: version for name, version in _LOCKED.findall(requirements) if name not in left_out}


def licence(message: Message) -> str:
    """Return a package's licence from its expression, short text or classifier; pure. Raises ReleaseError."""
    classified = [
        name.rpartition(" :: ")[2] for name in message.get_all("Classifier") or () if name.startswith("License ::")
    ]
    text = message.get("License") or ""
    for candidate in (message.get("License-Expression"), text if "\n" not in text else "", *classified):
        if candidate and candidate.strip():
            return _SPDX.get(candidate.strip(), candidate.strip())
    raise ReleaseError(f"{message['Name']} declares no licence")


def table() -> str:
    """Return the table of the locked versions. Raises ReleaseError if other versions are installed here."""
    packages = in_the_image(
        (REPOSITORY / "requirements/product.txt").read_text(), (REPOSITORY / "Dockerfile").read_text()
    )
    rows = []
    for name, version in packages.items():
        package_metadata = metadata.metadata(name)
        if package_metadata["Version"] != version:
            raise ReleaseError(f"{name} {package_metadata['Version']} is installed, {version} is locked: `make setup`")
        rows.append(f"| {name} | {version} | {licence(package_metadata)} |\n")  # type: ignore[arg-type]
    return "".join(["| package | version | licence |\n", "|---|---|---|\n", *rows])


def page(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main() -> int:
    text = PAGE.read_text()
    fresh = page(text)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(fresh)
    elif text != fresh:
        sys.stderr.write("docs/licences.md is stale: run make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
