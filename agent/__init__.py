"""The DaemonSet's program: look, judge, decide and tell, on a schedule and at every kernel line.

Two of our libraries load parts of their own and of others that an agent never uses: it logs JSON, and it asks an API
server with a token or a certificate. Something empty stands there while they load, so that 10 MiB are not held.
"""

import sys
from types import ModuleType


def _no_login(**_: object) -> None:
    raise OSError("an agent does not renew the OIDC login of a kubeconfig")


_login = ModuleType("requests_oauthlib")
vars(_login)["OAuth2Session"] = _no_login
_unused: dict[str, ModuleType | None] = {
    "rich": None,  # for structlog's console renderer, which does without
    "requests_oauthlib": _login,  # for kubernetes.config; with it requests and all that guesses encodings
    **{
        name: ModuleType(name)
        for name in (
            "oauthlib",
            "oauthlib.oauth2",
            "kubernetes.dynamic",
            "kubernetes.informer",
            "kubernetes.leaderelection",
            "kubernetes.stream",
            "kubernetes.watch",
        )
    },
}
_unused = {name: empty for name, empty in _unused.items() if name not in sys.modules}
sys.modules.update(_unused)  # type: ignore[arg-type]
import structlog  # noqa: E402, F401

import healthcheck.cluster  # noqa: E402, F401

for _name in _unused:
    del sys.modules[_name]
