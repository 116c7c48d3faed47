"""Read the validity period of the CA by which the API server trusts HAMi's webhook. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from msgspec import Struct

from diagnosis.snapshot.annotation_text import word


class Authority(Struct, frozen=True):
    """One certificate of a bundle."""

    name: str
    begins: datetime
    ends: datetime


@lru_cache(maxsize=64)
def authorities(bundle: str) -> tuple[Authority, ...]:
    """Return the certificates, sorted by expiry.

    Empty if the bundle can't be read; a saved state has no bundle.
    """
    import ssl  # noqa: PLC0415 - a large import, needed only for a webhook's CA

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode("ascii"))
        found = [
            Authority(_name(cert), *(_moment(cert[key]) for key in ("notBefore", "notAfter")))
            for cert in context.get_ca_certs()
        ]
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError, ValueError, KeyError, OverflowError, OSError):
        return ()
    return tuple(sorted(found, key=lambda authority: authority.ends))


def _moment(text: object) -> datetime:
    import ssl  # noqa: PLC0415

    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(text)), UTC)


def _name(certificate: Mapping[str, Any]) -> str:
    """Return the common name, else the organization; '' for neither."""
    pairs = dict(pair for part in certificate.get("subject", ()) for pair in part)
    return word(pairs.get("commonName") or pairs.get("organizationName") or "")
