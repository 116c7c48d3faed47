"""An HTML file that needs nothing else: no scripts, no network, one style sheet. The templates escape all text."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def rendered(package: str, template: str, **values: Any) -> str:
    """A package's template, which fills `base.html.j2`; in ASCII, so that it reads the same in any character set."""
    page = _environment(package).get_template(template).render(values)
    return page.encode("ascii", "xmlcharrefreplace").decode()


@cache
def _environment(package: str) -> Environment:
    places = ChoiceLoader([PackageLoader(package, "."), PackageLoader("diagnosis.report", ".")])
    return Environment(loader=places, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
