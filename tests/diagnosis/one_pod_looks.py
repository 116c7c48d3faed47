"""Each state of the tests is also diagnosed for each of its pods alone: the result for the pod must be the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from gpu_healthcheck.diagnosis.answers.live import read_near_pod
from gpu_healthcheck.diagnosis.answers.target import Target, concerned, narrowed
from gpu_healthcheck.diagnosis.causes.diagnose import Problem, diagnose
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.sources.collect import Collector
from tests.diagnosis.served import Served, log_of


def agree(objects: Sequence[Mapping[str, Any]], whole: Snapshot) -> None:
    """With the look at everything, as far as each pod is concerned."""
    for entry in objects if whole.sees("Pod") else ():
        if entry["kind"] == "Pod":
            target = Target("Pod", entry["metadata"]["namespace"], entry["metadata"]["name"])
            near = looked_at(Served(objects, tuple(whole.missing)), target, whole)
            # Which logs are read is another matter.
            assert _results(near, target) == _results(replace(whole, logs=near.logs), target), target.subject


def looked_at(served: Served, target: Target, whole: Snapshot) -> Snapshot:
    with _at(whole.now):
        return read_near_pod(Collector(served.objects), log_of(whole.logs), target)


@contextmanager
def _at(now: datetime) -> Iterator[None]:
    with patch("gpu_healthcheck.diagnosis.sources.collect.datetime") as clock:
        clock.now.return_value = now
        yield


def _results(snapshot: Snapshot, target: Target) -> list[Any]:
    return _shape(narrowed(diagnose(snapshot), concerned(snapshot, target)).problems)


def _shape(problems: Iterable[Problem]) -> list[Any]:
    return sorted(
        (problem.found.cause.name, problem.found.subject, _shape(problem.consequences)) for problem in problems
    )
