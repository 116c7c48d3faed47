"""Choice of the cluster, by kubectl's rules.

The rules cover --kubeconfig, --context, KUBECONFIG, ~/.kube/config and a pod's account. A kubeconfig that names a
context takes precedence over the account (client-go, tools/clientcmd/merged_client_builder.go). If several files set
the same thing, the first one applies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_healthcheck.healthcheck.host.opening import is_absent, is_there
from gpu_healthcheck.healthcheck.model import ProbeError
from gpu_healthcheck.healthcheck.text.naming import named
from gpu_healthcheck.healthcheck.text.printable import printable

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_ADDRESS = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
_OF_A_PERSON = "~/.kube/config"
_MOST_NAMED = 20
_LONGEST_FILE = 8 << 20
_DEFAULT, _LONGEST_NAMESPACE = "default", 63


class KubeconfigError(Exception):
    """The requested file or context is missing or unreadable.

    The message names the missing item, and lists the available items.
    """


class Access(Struct, frozen=True):
    """The user's options for the connection; an empty string means not set."""

    kubeconfig: str = ""
    context: str = ""
    request_seconds: float | None = None
    """Limit of each request, in seconds; 0: no limit."""


class SelectedContext(Struct, frozen=True):
    """The chosen context and its files.

    `user` and `namespace` are those of the kubeconfig, or empty if it names none.
    """

    files: tuple[str, ...]
    context: str
    user: str = ""
    namespace: str = ""


def choose(access: Access | None) -> SelectedContext | None:
    """Return the context to use; None: the service account of this pod. Raises KubeconfigError.

    `access` None is for a program: in a pod it uses KUBECONFIG or its service account, and no home directory.
    """
    places = _places(access)
    read = [(place, content) for place in places if (content := _read(place, access))]
    context = (access.context if access else "") or next(_current(read), "")
    if context:
        return _named(context, read, places)
    if _has_account() or (access is None and _is_in_pod()):
        return None
    if read:
        known = named(_contexts(read), _MOST_NAMED)
        which = f"no current context in {named(places, _MOST_NAMED)}; --context takes {known}"
        raise KubeconfigError(which if known else f"no context in {named(places, _MOST_NAMED)}")
    where = f"no file {named(places, _MOST_NAMED)}" if places else "no kubeconfig"
    raise KubeconfigError(f"{where}, and this is no pod: use --kubeconfig, or set KUBECONFIG")


def context_names(access: Access) -> list[str]:
    """Return the names of the contexts in the chosen files. Raises KubeconfigError."""
    return list(_contexts([(place, content) for place in _places(access) if (content := _read(place, access))]))


def context_and_user(access: Access) -> tuple[str, str]:
    """Return the names of the chosen context and of its user; '' in a pod, and without a usable kubeconfig."""
    with suppress(KubeconfigError):
        if chosen := choose(access):
            return chosen.context, chosen.user
    return "", ""


def namespace_of(access: Access) -> str:
    """Return the namespace of the context or of this pod, by kubectl's rules: `default` if none is set."""
    try:
        chosen = choose(access)
        namespace = chosen.namespace if chosen else (_ACCOUNT.parent / "namespace").read_text(encoding="utf-8").strip()
    except (KubeconfigError, OSError, UnicodeDecodeError):
        return _DEFAULT
    return printable(namespace, _LONGEST_NAMESPACE) or _DEFAULT


def _is_in_pod() -> bool:
    return all(os.environ.get(name) for name in _ADDRESS)


def _has_account() -> bool:
    """Whether the process runs in a pod with a service account.

    Raises KubeconfigError if this cannot be checked.
    """
    try:
        return _is_in_pod() and is_there(_ACCOUNT)
    except ProbeError as error:
        raise KubeconfigError(f"the pod's account: {error}") from error


def _places(access: Access | None) -> list[str]:
    if access and access.kubeconfig:
        return [access.kubeconfig]
    if files := os.environ.get("KUBECONFIG", ""):
        return [file for file in files.split(os.pathsep) if file]
    return [] if access is None and _is_in_pod() else [_OF_A_PERSON]


def _path(place: str) -> Path:
    try:
        return Path(place).expanduser()
    except RuntimeError:  # a user without a home
        return Path(place)


def _read(place: str, access: Access | None) -> dict[str, Any]:
    """Read a kubeconfig file. A missing file is treated as empty, unless it was requested by name."""
    import yaml  # noqa: PLC0415 - only if a file is read

    try:
        with _path(place).open("rb") as file:
            raw = file.read(_LONGEST_FILE + 1)
        if len(raw) > _LONGEST_FILE:
            raise KubeconfigError(f"kubeconfig {place}: over {_LONGEST_FILE >> 20} MiB, which is the limit")
        content = yaml.safe_load(raw)
    except OSError as error:
        if is_absent(error) and not (access and access.kubeconfig):
            return {}
        raise KubeconfigError(f"kubeconfig {place}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise KubeconfigError(f"kubeconfig {place}: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise KubeconfigError(f"kubeconfig {place}: not a kubeconfig")
    return content


def _current(read: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    for _, content in read:
        if result := content.get("current-context"):
            yield str(result)


def _named(context: str, read: list[tuple[str, dict[str, Any]]], places: list[str]) -> SelectedContext:
    known = _contexts(read)
    if context not in known:
        there = f"there are {named(sorted(known), _MOST_NAMED)}" if known else "there is none"
        raise KubeconfigError(f"no context {context!r} in {named(places, _MOST_NAMED)}: {there}")
    content = known[context] if isinstance(known[context], dict) else {}
    user, namespace = (str(content.get(key) or "") for key in ("user", "namespace"))
    return SelectedContext(tuple(str(_path(place)) for place, _ in read), context, user, namespace)


def _contexts(read: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for place, content in read:
        rows = content.get("contexts") or []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise KubeconfigError(f"kubeconfig {place}: contexts: a list of objects is expected")
        for row in rows:
            known.setdefault(str(row.get("name")), row.get("context"))
    return known
