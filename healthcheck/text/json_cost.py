"""Memory cost of a JSON document, computed before it is parsed."""

from __future__ import annotations

_CHUNK = 1 << 18
_KEPT = b'"{[,:'
_DROPPED = bytes(one for one in range(256) if one not in _KEPT)


class JsonCostError(ValueError):
    """Error for a document that would need too much memory. The message contains the limit."""


def refuse_costly(raw: bytes | bytearray, most: int) -> int:
    """Return the number of `{`, `[`, `,` and `:` outside of strings. Raises JsonCostError if it exceeds `most`.

    Each value of a document needs one of them, and uses up to 100 bytes in Python: 150 KiB of gzip can contain 50
    million values. The function takes linear time, whether or not the text is JSON.
    """
    count, inside, rest = 0, False, b""
    for start in range(0, len(raw), _CHUNK):
        chunk = (rest + raw[start : start + _CHUNK]).replace(b"\\\\", b"")
        rest = chunk[-1:] if chunk.endswith(b"\\") else b""  # the escaped character is in the next chunk
        parts = chunk.replace(b'\\"', b"").translate(None, _DROPPED).split(b'"')
        count += sum(map(len, parts[inside::2]))
        inside ^= len(parts) % 2 == 0
        if count > most:
            raise JsonCostError(f"over {most:,} values and keys of JSON, the limit for reading")
    return count
