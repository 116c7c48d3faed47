"""Completions of values for a shell: names from the cluster, within a short time; none without an answer.

A shell evaluates completions, and a cluster or kubeconfig may be hostile, so only valid names are offered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import typer

from healthcheck.cluster.kubeconfig import Access, context_names
from healthcheck.host.forked import answered_within

_SECONDS = 2.0
"""Deadline of each request."""
_PATIENCE_SECONDS = 5.0
"""Deadline of all requests together: a kubeconfig may run a login program, and the shell waits for it."""
_NAME = re.compile(r"[A-Za-z0-9][\w.:/@+=,-]{0,252}\Z", re.ASCII)
_KINDS = ("pod", "node", "deployment", "replicaset", "statefulset", "daemonset", "job", "cronjob", "jobset", "hami")


def contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    return _offered(answered_within(_PATIENCE_SECONDS, lambda: context_names(_access(ctx))), incomplete)


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the nodes that have an agent's verdict and are not on the command line yet."""
    from healthcheck.node.state import STATUS  # noqa: PLC0415 - where a cluster is asked

    there = ctx.params.get("nodes") or ()
    named = _asked(ctx, lambda cluster: cluster.nodes.names(STATUS))
    return _offered((text for text in named if text not in there), incomplete)


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    return _offered(_asked(ctx, lambda cluster: cluster.nodes.names_of_namespaces()), incomplete)


def subjects(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of `diagnose`: kinds, and names of nodes."""
    words = ctx.params.get("words") or ()
    if not words:
        return _offered(_KINDS, incomplete)
    return nodes(ctx, incomplete) if list(words) in (["node"], ["nodes"], ["no"]) else []


def explained(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return all names that `explain` knows. Codes are left out: they are typed as numbers."""
    del ctx
    from cli import index  # noqa: PLC0415 - only for this completion

    reasons = (reason.reason.name for reason in index.reasons().values())
    return _offered(dict.fromkeys([*reasons, *(word[0].name for word in index.words().values())]), incomplete)


def _access(ctx: typer.Context) -> Access:
    return Access(ctx.params.get("kubeconfig") or "", ctx.params.get("context") or "", _SECONDS)


def _asked(ctx: typer.Context, question: Callable[..., list[str]]) -> list[str]:
    from cli.access import cluster_of  # noqa: PLC0415 - where a cluster is asked

    return answered_within(_PATIENCE_SECONDS, lambda: question(cluster_of(_access(ctx))))


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete) and _NAME.match(name)]
