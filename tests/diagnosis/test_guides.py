"""Questions of guides are answered, with existing names."""

from __future__ import annotations

import shlex
from itertools import groupby
from typing import Any

import pytest
from typer.main import get_command

from cli.app import app
from diagnosis.answers.target import parse_target
from diagnosis.causes import CAUSES
from healthcheck.checks import CHECKS, DEEP_CHECKS
from tools.guides import GUIDES, NOT_ANSWERED, Question, questions

QUESTIONS = questions()
NAMES = {one.name for one in CAUSES} | {one.name for check in (*CHECKS, *DEEP_CHECKS) for one in check.reasons}


def name_of(question: Question) -> str:
    return f"{question.guide} {question.section}: {question.question}"


@pytest.mark.parametrize("question", QUESTIONS, ids=name_of)
def test_a_question_has_an_answer_or_says_why_not(question: Question) -> None:
    assert question.answers
    assert all(answer.removeprefix(NOT_ANSWERED).strip() for answer in question.answers)
    assert question.section
    assert question.question
    assert "|" not in "".join((question.section, question.question, *question.answers, question.correction))


@pytest.mark.parametrize("question", [one for one in QUESTIONS if one.names], ids=name_of)
def test_every_cause_that_answers_exists(question: Question) -> None:
    assert set(question.names) <= NAMES


@pytest.mark.parametrize("answer", sorted({command for question in QUESTIONS for command in question.commands}))
def test_every_command_that_answers_is_taken_as_it_stands(answer: str) -> None:
    name, *words = shlex.split(answer)
    group: Any = get_command(app)
    _, command, _ = group.resolve_command(None, [name])
    context = command.make_context(name, words)  # raises for an option or a value that it does not know
    if name == "diagnose":
        parse_target(context.params["words"] or (), "")


def test_each_guide_is_walked_once_and_no_question_stands_twice() -> None:
    assert [guide for guide, _ in groupby(QUESTIONS, key=lambda question: question.guide)] == list(GUIDES)
    messages = [name_of(question) for question in QUESTIONS]
    assert sorted(set(messages)) == sorted(messages)
