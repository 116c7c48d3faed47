"""Save a cluster's state in one archive, for diagnosis elsewhere: `diagnose --save`."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpu_healthcheck.diagnosis.sources.redaction import redacted
from gpu_healthcheck.healthcheck.text.moments import timestamp

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER = "snapshot.json"
SCHEMA = 1
_BEGIN, _END = b'{"apiVersion":"v1","kind":"List","items":[\n', b"\n]}\n"


class Bundle:
    """Collect the redacted objects of a cluster, one file per kind, and write them when all are collected."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._files: dict[str, IO[bytes]] = {}

    def keep(self, kind: str, raw: Mapping[str, Any]) -> None:
        """Add one object of the API to the bundle."""
        file = self._files.get(kind)
        if file is None:
            file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the others, in `write`
            self._files[kind] = self._open.enter_context(file)
            file.write(_BEGIN)
        else:
            file.write(b",\n")
        file.write(json.dumps({"kind": kind, **redacted(raw)}, separators=(",", ":")).encode())

    def write(
        self, path: Path, at: datetime, missing: Mapping[str, str], listed: Iterable[str] = (), only_in: str = ""
    ) -> None:
        """Write the bundle. Only its owner may read it, because it reveals much about a cluster.

        `listed`: kinds that were listed completely, even if no object of them exists. `only_in`: as in a snapshot.
        Raises OSError.
        """
        fields = {"schema": SCHEMA, "at": timestamp(at), "missing": dict(missing), "listed": sorted(listed)}
        header = json.dumps(fields | {"only_in": only_in})
        with (
            self._open,
            open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
            _Packer(file) as packer,
            tarfile.open(fileobj=packer, mode="w|") as archive,
        ):
            _add(archive, HEADER, at, io.BytesIO(header.encode()))
            for kind, objects in sorted(self._files.items()):
                objects.write(_END)
                _add(archive, f"{kind}.json", at, objects)


class _Packer(io.BufferedIOBase):
    """Write a gzip file whose head has a checksum (RFC 1952, FHCRC). Python's writer and `gzip` write none."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        self._crc = self._size = 0
        head = b"\x1f\x8b\x08\x02" + bytes(5) + b"\xff"
        file.write(head + (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little"))

    def write(self, plain: Buffer) -> int:
        size = memoryview(plain).nbytes
        self._crc, self._size = zlib.crc32(plain, self._crc), self._size + size
        self._file.write(self._deflate.compress(plain))
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            end = self._crc.to_bytes(4, "little") + (self._size & 0xFFFFFFFF).to_bytes(4, "little")
            self._file.write(self._deflate.flush() + end)


def _add(archive: tarfile.TarFile, name: str, at: datetime, content: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size = content.seek(0, io.SEEK_END)
    member.mtime = int(at.timestamp())
    content.seek(0)
    archive.addfile(member, content)
