"""A finding in plain words: which device, and what happened to it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpu_healthcheck.healthcheck.catalog.xid import xid_table

_CLAUSE = re.compile(r": |[.;] |\.?\Z")
_XID = re.compile(r"Xid(\d{1,5})(?:Repeated)?\Z", re.ASCII)
_SXID = re.compile(r"SXid\d{1,5}\Z", re.ASCII)
_DCGM_TEST = "DcgmDiag"
_SUBJECT = re.compile(r"(?:An?|The) (?:GPU|NVSwitch|EFA device|mlx5 device|RDMA port|port of the GPU fabric)\b(?!-)")
_NOUNS = {"gpu": "GPU", "nvswitch": "NVSwitch", "efa": "EFA device", "rdma": "RDMA port"}


def plain_words(reason: str, subject: str, about: Mapping[str, str], meanings: Mapping[str, str]) -> str:
    """Return a clause about the subject: `GPU 2 fell off the bus`.

    It is the first clause of the reason's meaning. `meanings` has those of all reasons but Xids and SXids.
    """
    clause, name = _first_clause(_meaning(reason, meanings)), _name(subject, about)
    if not clause or not name:
        return clause or (f"{name} reported {reason}" if name else reason)
    if (device := _SUBJECT.match(clause)) is not None:
        return f"{name}{clause[device.end() :]}"
    return f"{name}: {_within_a_sentence(clause)}"


def _meaning(reason: str, meanings: Mapping[str, str]) -> str:
    if (xid := _XID.match(reason)) is not None:
        row = xid_table().get(int(xid[1]))
        return row.meaning if row is not None else ""
    if _SXID.match(reason):
        return "An NVSwitch reported an error."
    return meanings.get(reason) or (meanings.get(_DCGM_TEST, "") if reason.startswith(_DCGM_TEST) else "")


def _first_clause(meaning: str) -> str:
    end = _CLAUSE.search(meaning)
    return meaning[: end.start()] if end is not None else meaning


def _name(subject: str, about: Mapping[str, str]) -> str:
    """Return the device's name: the index of nvidia-smi, otherwise its address or name; '' without a device."""
    kind, _, rest = subject.partition("/")
    address, _, instance = rest.partition("/gi")
    if kind not in _NOUNS or not rest:
        return ""
    name = f"{_NOUNS[kind]} {about.get('index') or address}"
    return f"MIG instance {instance} of {name}" if instance else name


def _within_a_sentence(clause: str) -> str:
    """Return the clause without its capital letter; names such as NVML keep theirs."""
    return f"{clause[:1].lower()}{clause[1:]}" if clause[1:2].islower() or clause[1:2] == " " else clause
