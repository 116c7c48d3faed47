"""Listed packages, and the meaning of their metadata."""

from __future__ import annotations

from email.message import Message

import pytest

from tools.release.licences import PAGE, in_the_image, licence, page
from tools.release.running import ReleaseError

LOCKED = """\
aiohttp==3.14.5 \\
    --hash=sha256:00
    # via kubernetes
rich==15.0.0 \\
    --hash=sha256:01
tzdata==2026.6 ; sys_platform == "win32" \\
    --hash=sha256:02
"""
DOCKERFILE = """\
RUN python3 -m pip --python bin/python3 uninstall --yes --quiet \\
      aiohttp yarl \\
 && rm -r aio
"""


def metadata(**headers: str) -> Message:
    found = Message()
    found["Name"] = "one"
    for name, value in headers.items():
        found[name.replace("_", "-")] = value
    return found


def test_what_the_image_leaves_out_is_not_listed() -> None:
    assert in_the_image(LOCKED, DOCKERFILE) == {"rich": "15.0.0", "tzdata": "2026.6"}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (metadata(License_Expression="Apache-2.0 AND MIT", License="other"), "Apache-2.0 AND MIT"),
        (metadata(License="MIT License"), "MIT"),
        (
            metadata(
                License="Permission is hereby granted,\nfree", Classifier="License :: OSI Approved :: BSD License"
            ),
            "BSD",
        ),
        (metadata(Classifier="License :: OSI Approved :: MIT License"), "MIT"),
    ],
)
def test_a_packages_licence_is_what_its_metadata_says_most_exactly(metadata: Message, expected: str) -> None:
    assert licence(metadata) == expected


def test_a_package_without_a_licence_is_no_package_for_the_image() -> None:
    with pytest.raises(ReleaseError, match="one declares no licence"):
        licence(metadata(Classifier="Topic :: Software Development"))


def test_the_page_lists_what_is_locked() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text()
