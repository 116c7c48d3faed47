"""Libraries' imports that an agent never uses: left out of its process to save memory.

Only this module changes `sys.modules`, and only for `python -m agent`: importing a module of the agent elsewhere loads
the libraries completely. A part is listed here if an agent runs nothing of it; any use raises an OSError with its name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class UnusedModule(ModuleType):
    """Stand-in for a module: has each name that is imported from it, as a class that can't be instantiated."""

    def __init__(self, name: str, **kept: Any) -> None:
        super().__init__(name)
        vars(self).update(kept)

    def __getattr__(self, name: str) -> type[Exception]:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> None:
            raise OSError(f"the agent does not load {self.__name__}.{name}")

        return type(name, (Exception,), {"__init__": refuse})  # an exception class, for use after `except`


def _proxies() -> dict[str, str]:
    """Return the proxies of the environment, as the omitted library reads them; it is loaded if there are any."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return {}
    from urllib.request import getproxies  # noqa: PLC0415 - half a MiB

    return getproxies()


UNUSED: tuple[ModuleType, ...] = (
    # Parts of the client: we send plain objects, and read watches ourselves.
    *(UnusedModule(f"kubernetes.{part}") for part in ("dynamic", "stream", "watch")),
    # The client renews the OIDC login of a kubeconfig with these; requests and encoding detection depend on them.
    *(UnusedModule(name) for name in ("requests_oauthlib", "oauthlib", "oauthlib.oauth2")),
    *(UnusedModule(name) for name in ("dateutil", "dateutil.parser")),  # used by the client for times in typed objects
    # Process pools of the client; we use threads.
    UnusedModule("multiprocessing", cpu_count=os.cpu_count),
    *(UnusedModule(name) for name in ("multiprocessing.pool", "pickle")),
    *(UnusedModule(name) for name in ("bz2", "lzma")),  # used by shutil for archives
    # Used by inspect for signatures of C functions; since 3.14 also for annotations.
    *(UnusedModule(name) for name in ("ast",) if sys.version_info < (3, 14)),
    UnusedModule("sysconfig", get_config_var=lambda _: None),  # path of time zone data; our scheduler has its own zone
    # Proxies come from the environment, and nothing pushes with prometheus_client.
    UnusedModule("urllib.request", getproxies=_proxies),
    UnusedModule("zipfile"),  # for importlib.resources in an installed archive
    UnusedModule("html.entities", html5={}, name2codepoint={}),  # http.server only escapes
)
"""Each saves at least 0.2 MiB, alone or with the others of its line."""


@contextmanager
def without_unused_parts() -> Iterator[None]:
    """Replace these modules with stand-ins while the caller imports. Modules that are already loaded stay."""
    left_out: dict[str, ModuleType | None] = {module.__name__: module for module in UNUSED}
    left_out["rich"] = None  # None means "no such module" to Python; structlog's console renderer works without it
    absent = {name: part for name, part in left_out.items() if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
