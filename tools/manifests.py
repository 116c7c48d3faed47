#!/usr/bin/env python3
"""Write generated parts of manifests; `--check` only lists outdated files.

The ConfigMap gets its settings and instance-profiles.conf, the overlay `monitoring` the rules as an object of the
Prometheus operator; the Helm chart is generated from all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill, indent

from healthcheck.settings.declaration import NodeSettings, settings_of
from tools import chart

ROOT = Path(__file__).parents[1]
PROFILES = ROOT / "instance-profiles.conf"
MANIFEST = ROOT / "kubernetes" / "manifests" / "03-config.yaml"
BEGIN = "  # BEGIN instance-profiles.conf"
END = "  # END instance-profiles.conf"
SETTINGS_COMMENT = "  # Written from healthcheck/settings/declaration.py by `make docs`.\n"
RULES = ROOT / "monitoring" / "rules.yaml"
RULE_OBJECT = ROOT / "kubernetes" / "overlays" / "monitoring" / "prometheus-rule.yaml"
DASHBOARD = chart.CHART / "dashboard" / "gpu-healthcheck.json"
RULE_HEAD = """\
# Generated from monitoring/rules.yaml by `make docs`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gpu-healthcheck
  namespace: gpu-healthcheck
  labels:
    app.kubernetes.io/name: gpu-healthcheck
    app.kubernetes.io/component: monitoring
spec:
"""


def settings_block() -> str:
    """Return the ConfigMap's entries: each setting with its meaning and bounds as a comment, and its default."""
    lines = []
    for key, setting in settings_of(NodeSettings).items():
        if setting.has_effect:
            text = f"{setting.meaning} {setting.span}".rstrip()
            lines.append(fill(text, 118, initial_indent="  # ", subsequent_indent="  # ", break_on_hyphens=False))
            lines.append(f'  {key}: "{setting.written_default}"')
    return "\n".join(lines) + "\n"


def render(manifest: str, profiles: str) -> str:
    """Return the ConfigMap with the declared settings and, between the two marker lines, the profiles."""
    head, data, rest = manifest.partition("\ndata:\n")
    _, _, rest = rest.partition(BEGIN)
    before = f"{head}{data}{SETTINGS_COMMENT}{settings_block()}"
    marker, _, rest = rest.partition("\n")
    _, _, after = rest.partition(END)
    block = "  instance-profiles.conf: |\n" + indent(profiles, "    ")
    return f"{before}{BEGIN}{marker}\n{block}{END}{after}"


def rule_object(rules: str) -> str:
    """Return the groups as a PrometheusRule: its `spec` has the content of a rules file."""
    _, _, groups = rules.partition("\ngroups:\n")
    return RULE_HEAD + indent(f"groups:\n{groups}", "  ")


def rendered() -> dict[Path, str]:
    """Return every generated file with its content."""
    return {
        MANIFEST: render(MANIFEST.read_text(), PROFILES.read_text()),
        RULE_OBJECT: rule_object(RULES.read_text()),
    }


def stale() -> Iterator[tuple[Path, str]]:
    """Yield each outdated file. The chart is generated from the others, so it is last."""
    for made in (rendered, chart.rendered):
        yield from ((path, text) for path, text in made().items() if not path.exists() or path.read_text() != text)


def main() -> int:
    if "--check" in sys.argv[1:]:
        named = [path for path, _ in stale()]
        for path in named:
            sys.stderr.write(f"{path.relative_to(ROOT)} is stale: run make docs\n")
        return 1 if named else 0
    for path, text in stale():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
