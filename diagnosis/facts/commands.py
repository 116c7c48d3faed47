"""Commands in remedies and messages: complete, in backticks, and quoted for a shell. Pure."""

from __future__ import annotations

import shlex

from gpu_healthcheck.diagnosis.snapshot.meta import Meta


def command(*words: str) -> str:
    """Return a command as a remedy contains it: complete, in backticks, and quoted for a shell."""
    return f"`{shlex.join(words)}`"


def kubectl(verb: str, meta: Meta, *options: str) -> str:
    """Return the command for one object, as `kubectl -n team describe pod trainer-0`."""
    return command("kubectl", *in_namespace(meta.namespace), verb, meta.kind.lower(), meta.name, *options)


def logs(meta: Meta, *options: str) -> str:
    """Return the command that prints the log of a pod."""
    return command("kubectl", *in_namespace(meta.namespace), "logs", meta.name, *options)


def pods_on(node: str) -> str:
    """Return the command that lists all pods of a node."""
    return command("kubectl", "get", "pods", "-A", "-o", "wide", f"--field-selector=spec.nodeName={node}")


def explain(reason: str) -> str:
    """Return the command that prints the action for a reason."""
    return command("gpu-healthcheck", "explain", reason)


def in_namespace(name: str) -> tuple[str, ...]:
    """Return the option for a namespace; none for one that is not known, or an object without."""
    return ("-n", name) if name else ()
