"""Signatures and attestations, by the workflow's own identity or by a key pair, and their verification."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from release.programs import program
from release.provenance import Json
from release.running import run

SBOM, PROVENANCE = "spdxjson", "slsaprovenance1"
"""Types of attestations, as cosign calls them."""
GITHUB = "https://token.actions.githubusercontent.com"


@dataclass(frozen=True, slots=True)
class Signer:
    """Arguments of cosign to sign and to verify."""

    sign: tuple[str, ...]
    verify: tuple[str, ...]


def by_identity(identity: str) -> Signer:
    """Return a keyless signer: the certificate names the workflow, and the transparency log has the time."""
    return Signer((), (f"--certificate-identity={identity}", f"--certificate-oidc-issuer={GITHUB}"))


def by_key(folder: Path) -> Signer:
    """Create a key pair in that folder; no transparency log is used."""
    _cosign("generate-key-pair", folder=folder)
    return Signer(
        (f"--key={folder / 'cosign.key'}", "--tlog-upload=false"),
        (f"--key={folder / 'cosign.pub'}", "--insecure-ignore-tlog=true"),
    )


def sign(signer: Signer, reference: str) -> None:
    _cosign("sign", "--yes", "--recursive", *signer.sign, reference)


def attest(signer: Signer, reference: str, kind: str, predicate: Path | Json) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = predicate if isinstance(predicate, Path) else Path(folder) / "predicate.json"
        if not isinstance(predicate, Path):
            file.write_text(json.dumps(predicate))
        _cosign("attest", "--yes", *signer.sign, f"--type={kind}", f"--predicate={file}", reference)


def sign_file(signer: Signer, file: Path) -> None:
    """Sign a file; the signature is written next to it."""
    _cosign("sign-blob", "--yes", *signer.sign, f"--bundle={bundle_of(file)}", str(file))


def bundle_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.cosign.bundle")


def verify(signer: Signer, reference: str) -> None:
    """Verify the signature. Raises ReleaseError if it is missing or from another signer."""
    _cosign("verify", *signer.verify, reference)


def verify_attestation(signer: Signer, reference: str, kind: str) -> Json:
    """Return the signed statement."""
    answer = _cosign("verify-attestation", *signer.verify, f"--type={kind}", reference)
    found: Json = json.loads(answer.splitlines()[0])
    return found


def verify_file(signer: Signer, file: Path) -> None:
    _cosign("verify-blob", *signer.verify, f"--bundle={bundle_of(file)}", str(file))


def _cosign(*words: str, folder: Path | None = None) -> str:
    return run([program("cosign"), *words], {"COSIGN_PASSWORD": ""}, folder)
