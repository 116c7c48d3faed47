"""Render an HTML file without scripts or network access, with one style sheet. The templates escape all text."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def rendered(package: str, template: str, **values: Any) -> str:
    """Render a package's template, which extends `base.html.j2`, in ASCII, which all character sets share."""
    page = _environment(package).get_template(template).render(values)
    return page.encode("ascii", "xmlcharrefreplace").decode()


@cache
def _environment(package: str) -> Environment:
    places = ChoiceLoader([PackageLoader(package, "."), PackageLoader("diagnosis.report", ".")])
    return Environment(loader=places, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
