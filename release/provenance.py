"""Sources and builder of an image, as a predicate of SLSA v1 (https://slsa.dev/spec/v1.0/provenance); pure."""

from __future__ import annotations

from dataclasses import dataclass

from release.origin import Origin

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Builder:
    """Builder of an image, for its provenance."""

    identity: str
    """URI of the builder, such as the workflow at its tag."""
    invocation: str


def predicate(made_from: Origin, target: str, bases: dict[str, str], builder: Builder) -> Json:
    source = f"git+{made_from.source}" if made_from.source else "git+file:///"
    return {
        "buildDefinition": {
            "buildType": "https://github.com/containers/buildah/blob/main/docs/buildah-build.1.md",
            "externalParameters": {
                "source": source,
                "dockerfile": "Dockerfile",
                "target": target,
                "version": made_from.version,
                "sourceDateEpoch": made_from.epoch,
            },
            "resolvedDependencies": [
                {"uri": source, "digest": {"gitCommit": made_from.revision}},
                *(_dependency(image) for image in bases.values()),
            ],
        },
        "runDetails": {"builder": {"id": builder.identity}, "metadata": {"invocationId": builder.invocation}},
    }


def _dependency(image: str) -> Json:
    name, _, digest = image.partition("@")
    kind, _, value = digest.partition(":")
    return {"uri": f"docker://{name}"} | ({"digest": {kind: value}} if value else {})
