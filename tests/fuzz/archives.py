"""Tar archives with any damage: members are read, or the archive is refused or reported as damaged."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence

from hypothesis import strategies as st

from gpu_healthcheck.diagnosis.sources.archive import Archive, ArchiveError
from tests.fuzz.damage import byte_damages, damaged

_BLOCK = 512
_Damages = Sequence[tuple[int, int, bytes]]


def any_archive_is_read_or_refused(
    members: dict[str, bytes], form: int, in_headers: _Damages, damages: _Damages
) -> None:
    """A damaged header has a matching checksum: only its content is wrong."""
    whole = _packed(members, form)
    packed = damaged(_sealed(whole, in_headers), damages)
    archive = Archive(iter([packed[at : at + 700] for at in range(0, len(packed), 700)]), ".json")
    try:
        read = [(name, bytes(content)) for name, content in archive.members()]
    except ArchiveError as error:
        assert len(str(error)) < 400  # noqa: PT017 - any error of that kind will do
        assert packed != whole
        return
    assert sum(len(content) for _, content in read) <= len(packed)
    if packed == whole:
        assert (dict(read), archive.damage) == (members, "")


def _packed(members: dict[str, bytes], form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _sealed(raw: bytes, damages: _Damages) -> bytes:
    for place, length, instead in damages:
        at = place * _BLOCK % len(raw)
        header = bytearray(damaged(raw[at : at + _BLOCK], [(place, length, instead)])[:_BLOCK].ljust(_BLOCK, b"\0"))
        header[148:156] = b" " * 8
        header[148:156] = f"{sum(header):06o}\0 ".encode()
        raw = raw[:at] + bytes(header) + raw[at + _BLOCK :]
    return raw


archives = {
    "members": st.dictionaries(
        st.text("abcé-/", min_size=1, max_size=160).map(lambda name: f"x{name}x.json"),
        st.binary(max_size=900),
        max_size=4,
    ),
    "form": st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    "in_headers": st.just([]) | st.lists(byte_damages, max_size=3),
    "damages": st.just([]) | st.lists(byte_damages, max_size=3),
}
