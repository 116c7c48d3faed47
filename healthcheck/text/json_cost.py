"""Cost of a JSON document in memory, known before it is parsed."""

from __future__ import annotations

_CHUNK = 1 << 18
_KEPT = b'"{[,:'
_DROPPED = bytes(one for one in range(256) if one not in _KEPT)


class JsonCostError(ValueError):
    """Error for a document that would need too much memory. The message contains the limit."""


def refuse_costly(raw: bytes | bytearray, most: int) -> int:
    """Return the number of `{`, `[`, `,` and `:` outside of strings. Raises JsonCostError where it is over `most`.

    Each value of a document needs one of them, and Python takes up to 100 bytes for it: 150 KiB of gzip can hold 50
    million. Takes linear time, whether or not the text is JSON.
    """
    count, inside, rest = 0, False, b""
    for start in range(0, len(raw), _CHUNK):
        chunk = (rest + raw[start : start + _CHUNK]).replace(b"\\\\", b"")
        rest = chunk[-1:] if chunk.endswith(b"\\") else b""  # the character that it escapes is in the next chunk
        parts = chunk.replace(b'\\"', b"").translate(None, _DROPPED).split(b'"')
        count += sum(map(len, parts[inside::2]))
        inside ^= len(parts) % 2 == 0
        if count > most:
            raise JsonCostError(f"over {most:,} values and keys of JSON, the limit for reading")
    return count
