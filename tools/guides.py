"""Questions of troubleshooting guides for GPU workloads, and their answers here: the rows of guides.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

NOT_ANSWERED = "not answered: "
GUIDES: Mapping[str, str] = {
    "runtime": "“GPU Workload Failure Diagnosis”: a node with two containerds",
    "scheduling": "“Lesson 08: GPU Scheduling in Kubernetes”",
    "hami": "“k8s_gpu_pod_troubleshooter”: GPU pods with HAMi",
    "hami-scheduler": "The debugging guide of HAMi's scheduler",
}
_FILE = Path(__file__).with_name("guides.csv")
_HEADER = ("guide", "section", "question", "answers", "correction")


@dataclass(frozen=True, slots=True)
class Question:
    """Question of a guide. `answers`: causes and reasons by name, commands without the program's name, `NOT_ANSWERED`.

    `correction`: the right answer if the guide is wrong.
    """

    guide: str
    section: str
    question: str
    answers: tuple[str, ...]
    correction: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(answer for answer in self.answers if answer[:1].isupper())

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(answer for answer in self.answers if answer[:1].islower() and not answer.startswith(NOT_ANSWERED))


def questions() -> tuple[Question, ...]:
    """Return the questions in the order of the guides."""
    header, *rows = csv.reader(_FILE.read_text(encoding="utf-8").splitlines(), strict=True)
    if tuple(header) != _HEADER or any(len(row) != len(_HEADER) for row in rows):
        raise ValueError(f"{_FILE.name}: its columns are {', '.join(_HEADER)}")
    return tuple(Question(guide, where, what, _answers(message), right) for guide, where, what, message, right in rows)


def section(links: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the section. `links`: link targets by name."""
    yield "## Answers to four troubleshooting guides\n"
    yield "Each manual check of four guides for a stuck GPU workload, with its answer here: a cause, a finding of the"
    yield "agent, or a command of `gpu-healthcheck`. The last column corrects errors of the guide.\n"
    for guide, rows in groupby(questions(), key=lambda question: question.guide):
        yield f"### {GUIDES[guide]}\n"
        yield "| section | question | answered by | correction |"
        yield "|---|---|---|---|"
        for question in rows:
            answers = "; ".join(_shown(answer, links) for answer in question.answers)
            yield f"| {question.section} | {question.question} | {answers} | {question.correction} |"
        yield ""


def _answers(cell: str) -> tuple[str, ...]:
    """Split a cell into answers. The text after `NOT_ANSWERED` is one answer."""
    named, mark, why = cell.partition(NOT_ANSWERED)
    answers = tuple(word.strip() for word in named.split(";") if word.strip())
    return (*answers, mark + why) if mark else answers


def _shown(answer: str, links: Mapping[str, str]) -> str:
    if answer.startswith(NOT_ANSWERED):
        return answer
    return f"[{answer}]({links[answer]})" if answer[:1].isupper() else f"`{answer}`"
