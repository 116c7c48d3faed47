"""The chart's templates, generated from the manifests: the same text, with placeholders for the values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import indent

from gpu_healthcheck import healthcheck
from gpu_healthcheck.agent.process.settings import AgentSettings
from gpu_healthcheck.healthcheck.settings.declaration import by_key
from tools.chart import keys, rules, settings
from tools.chart.keys import ADDED, KEYS, LABELLED, PODS, Identity, Key, Place
from tools.chart.manifest import Document, Edit, Steps, as_template, documents

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "kubernetes" / "manifests"
OVERLAYS = ROOT / "kubernetes" / "overlays"
IMAGE = f"gpu-healthcheck:{healthcheck.__version__}"
"""Image in the manifests, which `sed` replaces (docs/install.md); no other text there matches it."""

HELMS_OWN: Identity = ("Namespace", "gpu-healthcheck")
"""Not in the chart: the namespace of the release must exist before its objects."""
_IN_ORDER = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "DaemonSet", "Deployment", "CronJob")
"""Helm orders objects by kind, and puts unknown kinds, such as policies, after all others. It treats a List as one
object and keeps its order (docs/decisions/0041)."""
_LIST = "policies-and-programs"
_LIST_DEPTH = 4
"""Indentation of the List's items, in columns."""
_LIST_HEAD = """\
# Generated from kubernetes/manifests by `make docs`.
# Helm keeps the order of a List: the policies are active before the pods that they restrict exist. Otherwise Helm would
# create the policies last (docs/decisions/0041-helm-chart-generated-from-manifests.md).
apiVersion: v1
kind: List
metadata:
  name: gpu-healthcheck # not used; helm lint --strict requires a name
items:
"""


@dataclass(frozen=True)
class Source:
    """File of manifests. `key`: the value that enables it; '' if it is always created."""

    path: Path
    key: str = ""

    @cached_property
    def documents(self) -> list[Document]:
        return list(documents(self.path.read_text()))

    @property
    def name(self) -> str:
        """Return the file name of its template."""
        return self.path.name if self.path.parent == MANIFESTS else f"{self.path.parent.name}-{self.path.name}"


def _files() -> list[Source]:
    files = [Source(file) for file in sorted(MANIFESTS.glob("*.yaml"))]
    for overlay, key in ADDED.items():
        found = sorted((OVERLAYS / overlay).glob("*.yaml"))
        files += [Source(file, key) for file in found if file.name != "kustomization.yaml"]
    return files


def sources() -> dict[Identity, Document]:
    """Return the objects of all files by kind and name; Roles of one name in two namespaces share an entry."""
    return {document.identity: document for file in _files() for document in file.documents}


def templates() -> dict[str, str]:
    """Return every template generated from a manifest, by file name."""
    files = _files()
    made = {file.name: text for file in files if (text := _file(file))}
    in_order = [
        (document, file.key) for file in files for document in file.documents if document.identity[0] in _IN_ORDER
    ]
    items = (_if(key, _item(template(document, _LIST_DEPTH))) for document, key in sorted(in_order, key=_turn))
    return {**made, f"{_LIST}.yaml": _LIST_HEAD + "".join(items)}


def _turn(item: tuple[Document, str]) -> int:
    """Return a sort key: policies and bindings before programs, otherwise in the order of the manifests."""
    return int(item[0].identity[0] in ("DaemonSet", "Deployment", "CronJob"))


def _file(file: Source) -> str:
    """Return the template of a file; '' if all its objects are in other templates."""
    found = [
        document
        for document in file.documents
        if document.identity[0] not in _IN_ORDER and document.identity != HELMS_OWN
    ]
    texts = (_if(LABELLED.get(document.identity, file.key), f"---\n{template(document)}") for document in found)
    head = f"# Generated from {file.path.relative_to(ROOT)} by `make docs`.\n"
    return head + "".join(texts) if found else ""


def _if(key: str, text: str) -> str:
    return f"{{{{- if .Values.{key}.enabled }}}}\n{text}{{{{- end }}}}\n" if key else text


def _item(text: str) -> str:
    """Return an object as an item of a list, with its leading comments before it."""
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if not line.startswith("#"))
    head = [f"  {line}\n" for line in lines[:first]]
    return "".join([*head, f"  - {lines[first]}\n", indent("\n".join(lines[first + 1 :]), "    "), "\n"])


def template(document: Document, depth: int = 0) -> str:
    """Return one object with the values inserted. `depth`: the later indentation of its text."""
    edits = [*_edits(document, depth), *_special(document)]
    # The gate starts from the image that each GPU node already has; evict needs no DCGM.
    image = "agentImage" if document.identity in (keys.AGENT, keys.GATE, keys.EVICT) else "image"
    return as_template(document.text, edits).replace(IMAGE, f'{{{{ include "gpu-healthcheck.{image}" . }}}}')


def _edits(document: Document, depth: int) -> Iterator[Edit]:
    for key in KEYS:
        for place in key.places:
            if place.of == document.identity:
                yield _block(document, key, place, depth) if place.block else _value(document, key, place)


def _value(document: Document, key: Key, place: Place) -> Edit:
    return document.replaced(place.path, f"{{{{ .Values.{key.name} | toJson }}}}")


def _block(document: Document, key: Key, place: Place, depth: int) -> Edit:
    """Return an edit that writes the whole entry, or omits it if the value is empty."""
    missing = document.value(place.path) is None
    edit, column = document.below(place.path[:-1]) if missing else document.entry(place.path)
    lines = (
        f"{{{{- with {_VALUES.get((key.name, place.of), f'.Values.{key.name}')} }}}}",
        f"{place.path[-1]}:",
        f"  {{{{- toYaml . | nindent {column + 2 + depth} }}}}",
        "{{- end }}",
    )
    text = f"\n{' ' * column}".join(lines)
    return Edit(edit.start, edit.end, f"\n{' ' * column}{text}" if missing else text)


_VALUES = {("agent.resources", keys.AGENT): '(include "gpu-healthcheck.agentResources" . | fromYaml)'}
"""Expressions computed from more than one value."""


def _special(document: Document) -> Iterator[Edit]:
    """Yield edits for values without a single place."""
    if document.identity == keys.CONFIG:
        yield from _settings(document)
    if document.identity in (keys.AGENT, keys.QUARANTINE):
        yield _under(document, PODS[document.identity], _RUNTIME_CLASS)
    if document.identity == keys.AGENT:
        yield _under(document, (*PODS[keys.AGENT], "containers", 0, "env"), _ENVIRONMENT)
    if document.identity in (keys.SWEEPER, keys.AUTOMATION, keys.EVICT):
        yield from _wrapped(document, (*PODS[document.identity], "affinity"), "{{- if not .Values.onlyGpuNodes }}")
    if document.identity == keys.GATE:
        yield _variable(document, "port", ".Values.agent.metricsPort | int")
        yield _variable(document, "pullPolicy", ".Values.image.pullPolicy")
    if document.identity[0].startswith("MutatingAdmissionPolicy"):
        yield document.replaced(("apiVersion",), '{{ include "gpu-healthcheck.mutatingPolicies" . }}')
    if document.identity == keys.RULES:
        yield from rules.edits(document)
    if key := LABELLED.get(document.identity):
        labels = f"{{{{- range $key, $value := .Values.{key}.labels }}}}"
        yield _under(
            document, ("metadata", "labels"), (labels, "{{ $key | toJson }}: {{ $value | toJson }}", "{{- end }}")
        )


_RUNTIME_CLASS = ("{{- with .Values.runtimeClassName }}", "runtimeClassName: {{ . | toJson }}", "{{- end }}")
_DEFAULTS = by_key(AgentSettings(node_name=""))
_ENVIRONMENT = (
    "{{- if .Values.runtimeClassName }}",
    "- name: NVIDIA_VISIBLE_DEVICES",
    "  value: all",
    "# utility: NVML and nvidia-smi, without CUDA.",
    "- name: NVIDIA_DRIVER_CAPABILITIES",
    "  value: utility",
    "{{- end }}",
    f"{{{{- if ne (int .Values.agent.metricsPort) {_DEFAULTS['METRICS_PORT']} }}}}",
    "- name: METRICS_PORT",
    "  value: {{ .Values.agent.metricsPort | int | quote }}",
    "{{- end }}",
    f'{{{{- if ne .Values.agent.logLevel "{_DEFAULTS["LOG_LEVEL"]}" }}}}',
    "- name: LOG_LEVEL",
    "  value: {{ .Values.agent.logLevel | toJson }}",
    "{{- end }}",
)


def _variable(document: Document, name: str, value: str) -> Edit:
    """Return an edit of a policy's variable: a text in quotes, for CEL, in the quotes of YAML."""
    names = [variable["name"] for variable in document.value(("spec", "variables"))]
    path = ("spec", "variables", names.index(name), "expression")
    return document.replaced(path, f"{{{{ {value} | quote | quote }}}}")


def _under(document: Document, path: Steps, lines: Iterable[str]) -> Edit:
    edit, column = document.below(path)
    return Edit(edit.start, edit.end, "".join(f"\n{' ' * column}{line}" for line in lines))


def _wrapped(document: Document, path: Steps, condition: str) -> Iterator[Edit]:
    """Yield edits that keep the entry unchanged if the condition holds."""
    edit, column = document.entry(path)
    yield Edit(edit.start, edit.start, f"{condition}\n{' ' * column}")
    yield Edit(edit.end, edit.end, f"\n{' ' * column}{{{{- end }}}}")


def _settings(document: Document) -> Iterator[Edit]:
    """Yield the edit of the ConfigMap's data, which also removes the comments below: values.yaml has them."""
    data = document.replaced(("data",), settings.template())
    yield Edit(data.start - 1, len(document.text.rstrip()), data.text)
