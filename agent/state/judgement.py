"""Memory and last outcome of each check, with the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from msgspec import Struct, field

from healthcheck.checks.examine import NOT_LOOKED_YET
from healthcheck.memory.findings import Memory
from healthcheck.model import Check, Outcome, Unobserved
from healthcheck.verdict.verdict import Verdict, decide

_NOT_YET = Unobserved(NOT_LOOKED_YET, "the first check cycle has not ended")


class Judgement(Struct, frozen=True, dict=True):
    """Memory and last outcome of each selected check. The verdict is computed once, when it is first read."""

    memory: Memory = field(default_factory=Memory)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every selected check has an outcome."""
        return all(check.name in self.outcomes for check in self.checks)

    @cached_property
    def verdict(self) -> Verdict:
        return decide(
            self.memory,
            [
                self.outcomes.get(check.name, Outcome(check.name, check.group, unobserved=(_NOT_YET,)))
                for check in self.checks
            ],
        )

    def after(self, memory: Memory, outcomes: Iterable[Outcome] = ()) -> Judgement:
        """Return the judgement with this memory and these outcomes."""
        return Judgement(memory, {**self.outcomes, **{outcome.check: outcome for outcome in outcomes}}, self.checks)

    def among(self, checks: tuple[Check, ...], memory: Memory) -> Judgement:
        """Return the judgement by these checks alone."""
        names = {check.name for check in checks}
        outcomes = {name: outcome for name, outcome in self.outcomes.items() if name in names}
        return Judgement(memory, outcomes, checks)
