"""Read the validity period of the CA by which the API server trusts HAMi's webhook. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot.hami_pod import short


class Authority(Struct, frozen=True):
    """One certificate of a bundle."""

    name: str
    begins: datetime
    ends: datetime


@lru_cache(maxsize=64)
def last_authority(bundle: str) -> Authority | None:
    """Return the certificate that ends last; None if the bundle can't be read, as in a saved state."""
    import ssl  # noqa: PLC0415 - a large import, needed only for a webhook's CA

    def moment(text: object) -> datetime:
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(text)), UTC)

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode("ascii"))
        authorities = [
            Authority(_name(certificate), moment(certificate["notBefore"]), moment(certificate["notAfter"]))
            for certificate in context.get_ca_certs()
        ]
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError, ValueError, KeyError, OverflowError, OSError):
        return None
    return max(authorities, key=lambda authority: authority.ends, default=None)


def _name(certificate: Mapping[str, Any]) -> str:
    """Return the common name, else the organization; '' for neither."""
    names = dict(pair for part in certificate.get("subject", ()) for pair in part)
    return short(names.get("commonName") or names.get("organizationName") or "")
