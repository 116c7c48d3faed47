"""Render an HTML file without network access, with one style sheet. The templates escape all text.

A page has at most one script, which its Content-Security-Policy allows by its hash.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def rendered(package: str, template: str, **values: Any) -> str:
    """Render a package's template, which extends `base.html.j2`, in ASCII, which all character sets share."""
    page = _environment(package).get_template(template).render(values)
    return page.encode("ascii", "xmlcharrefreplace").decode()


@cache
def _environment(package: str) -> Environment:
    places = ChoiceLoader([PackageLoader(package, "."), PackageLoader("diagnosis.report", ".")])
    environment = Environment(
        loader=places, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["csp_hash"] = _csp_hash
    return environment


def _csp_hash(script: str) -> str:
    """Return the hash by which a Content-Security-Policy allows an inline script."""
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"
