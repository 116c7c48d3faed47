"""One story of a diagnostic, as each version of `dcgmi diag -j` writes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Said:
    """An error, with all that a version can tell of it."""

    text: str
    id: int
    category: int = 10
    severity: int = 2


@dataclass(frozen=True)
class Story:
    """Result of each test by its name (in DCGM 4) and GPU. A GPU without an entry passed."""

    gpus: int = 2
    tests: Sequence[str] = ("software", "memory", "pcie")
    errors: Mapping[tuple[str, int], Sequence[Said]] = field(default_factory=dict)
    skipped: Sequence[tuple[str, int]] = ()

    def status(self, test: str, gpu: int) -> str:
        if (test, gpu) in self.skipped:
            return "Skip"
        return "Fail" if self.errors.get((test, gpu)) else "Pass"


FAULTY = Said("Found 3 faulty memory elements on GPU 1", 52)
NOT_PERSISTENT = Said("Persistence mode for GPU 0 is disabled.", 29, 8, 5)
OLD_NAMES = {
    "memory": ("Hardware", "GPU Memory"),
    "pcie": ("Integration", "PCIe"),
    "diagnostic": ("Hardware", "Diagnostic"),
    "memory_bandwidth": ("Stress", "Memory Bandwidth"),
    "memtest": ("Stress", "Memtest"),
    "pulse_test": ("Hardware", "Pulse Test"),
    "targeted_stress": ("Stress", "Targeted Stress"),
    "targeted_power": ("Stress", "Targeted Power"),
    "eud": ("Stress", "EUD Test"),
    "context_create": ("Hardware", "Context Create"),
}
PARTS = (
    "Denylist",
    "NVML Library",
    "CUDA Main Library",
    "Permissions and OS Blocks",
    "Persistence Mode",
    "Inforom",
    "Graphics Processes",
)
PART_OF = {25: "Graphics Processes", 29: "Persistence Mode", 9: "Inforom", 22: "CUDA Main Library"}


def dcgm_3_3_1(story: Story) -> dict[str, Any]:
    def separate_errors(_: Sequence[int], errors: Sequence[Said]) -> dict[str, Any]:
        return {"warnings": errors[0].text, **_numbers(errors[0])} if errors else {}

    return _newer_old(story, separate_errors, "3.3.1")


def dcgm_3_3_9(story: Story) -> dict[str, Any]:
    """The number of the last GPU with an error, and the key of the texts is `warnings` again."""

    def listed(gpus: Sequence[int], errors: Sequence[Said]) -> dict[str, Any]:
        texts = [{"warnings": error.text, **_numbers(error)} for error in errors]
        return {"gpu_id": gpus[-1], "warnings": texts} if errors else {}

    return _newer_old(story, listed, "3.3.9")


def dcgm_4(story: Story, version: str = "4.2.3") -> dict[str, Any]:
    categories: dict[str, list[dict[str, Any]]] = {}
    for test in story.tests:
        category = "Deployment" if test == "software" else OLD_NAMES[test][0]
        categories.setdefault(category, []).append(_test_of_4(story, test, version))
    serials = {"entity_group": "GPU", "entity_group_id": 1, "entities": [_entity(gpu) for gpu in range(story.gpus)]}
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": c, "tests": t} for c, t in categories.items()]},
        "entity_groups": [serials],
        "metadata": {"version": version, "Driver Version Detected": "570.148.08", "EUD Test Version": "eud.580"},
    }


def dcgm_4_5(story: Story) -> dict[str, Any]:
    """The summary of a test repeats the errors of all its GPUs."""
    return dcgm_4(story, "4.5.2")


SHAPES: dict[str, Callable[[Story], dict[str, Any]]] = {
    "3.3.1": dcgm_3_3_1,
    "3.3.9": dcgm_3_3_9,
    "4.2.3": dcgm_4,
    "4.5.2": dcgm_4_5,
}


def printed(document: Any) -> bytes:
    """As jsoncpp prints it, with a tab for each level."""
    return json.dumps(document, indent="\t", separators=(",", " : ")).encode() + b"\n"


def runtime_error(text: str, top: str = "DCGM Diagnostic") -> bytes:
    return printed({top: {"runtime_error": text, "version": "4.2.3"}})


def _entity(gpu: int) -> dict[str, Any]:
    return {"entity_id": gpu, "device_id": "2330", "serial_num": f"165012300{gpu}"}


def _test_of_4(story: Story, test: str, version: str) -> dict[str, Any]:
    results = []
    for gpu in range(story.gpus):
        result: dict[str, Any] = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu}
        result["status"] = story.status(test, gpu)
        result["info"] = ["some words"]
        if errors := story.errors.get((test, gpu)):
            result["warnings"] = [{"warning": _of_4(test, one), **_numbers(one)} for one in errors]
        results.append(result)
    every = [error for result in results for error in result.get("warnings", [])]
    summary: dict[str, Any] = {"status": "Fail" if every else "Pass"}
    if every and version >= "4.5":
        summary["warnings"] = every
    return {"name": test, "results": results, "test_summary": summary}


def _of_4(test: str, error: Said) -> str:
    return f"{PART_OF[error.id]}: {error.text}" if test == "software" else error.text


def _numbers(error: Said) -> dict[str, int]:
    return {"error_id": error.id, "error_category": error.category, "error_severity": error.severity}


def _newer_old(
    story: Story, software: Callable[[Sequence[int], Sequence[Said]], dict[str, Any]], version: str
) -> dict[str, Any]:
    categories: dict[str, list[Any]] = {}
    for test in story.tests:
        if test == "software":
            categories["Deployment"] = [_part(story, part, software) for part in PARTS]
            continue
        category, old_name = OLD_NAMES[test]
        results = [_result_of_3_3(story, test, gpu) for gpu in range(story.gpus)]
        categories.setdefault(category, []).append({"name": old_name, "results": results})
    return {
        "DCGM GPU Diagnostic": {"test_categories": [{"category": c, "tests": t} for c, t in categories.items()]},
        "version": version,
        "Driver Version Detected": "535.129.03",
        "GPU Device Serials": {str(gpu): f"165012300{gpu}" for gpu in range(story.gpus)},
    }


def _result_of_3_3(story: Story, test: str, gpu: int) -> dict[str, Any]:
    result: dict[str, Any] = {"gpu_id": str(gpu), "status": story.status(test, gpu), "info": ""}
    if errors := story.errors.get((test, gpu)):
        result["warnings"] = [{"warning": error.text, **_numbers(error)} for error in errors]
    return result


def _part(
    story: Story, part: str, software: Callable[[Sequence[int], Sequence[Said]], dict[str, Any]]
) -> dict[str, Any]:
    mine = [
        (gpu, error)
        for (test, gpu), errors in story.errors.items()
        for error in errors
        if test == "software" and PART_OF[error.id] == part
    ]
    result = {"status": "Fail" if mine else "Pass"}
    return {"name": part, "results": [result | software([gpu for gpu, _ in mine], [error for _, error in mine])]}
