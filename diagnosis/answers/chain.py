"""Show one pod link by link, from admission to CUDA: passed, broken and unreached links. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from msgspec import Struct

from gpu_healthcheck.diagnosis.answers.target import touches
from gpu_healthcheck.diagnosis.causes.diagnose import Problem, why_hidden
from gpu_healthcheck.diagnosis.facts.symptoms import of_events, standing_events
from gpu_healthcheck.diagnosis.model import Link
from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.grouping import grouped
from gpu_healthcheck.diagnosis.snapshot.pods import ContainerEnd, Pod

AnyLink = TypeVar("AnyLink", bound=Enum)
_MOST_CHAINS = 3
_ON_NODE = (Link.ACCEPTED, Link.RUNTIME, Link.PREPARED, Link.STARTED, Link.RUNNING)
_NEVER_STARTED = frozenset(("StartError", "ContainerCannotRun", "CreateContainerError", "RunContainerError"))


class LinkState(Enum):
    """State of a link."""

    FINE = "fine"
    BROKEN = "broken"
    WAITING = "not yet"
    """The pod is at this link; no cause was found for the delay."""
    UNKNOWN = "not checked"
    """The pod has passed the link, but what may break it now is not visible."""
    NOT_REACHED = "not reached"


class Step(Struct, frozen=True):
    """One link of a pod's chain, with the problems that broke it.

    The value of the link is shown to people.
    """

    link: Enum
    state: LinkState
    seen: str = ""
    """Short evidence for the state of the link."""
    problems: tuple[Problem, ...] = ()

    @property
    def reason(self) -> str:
        """Return the names of the causes that broke the link, or the evidence."""
        return ", ".join(problem.found.cause.name for problem in self.problems) or self.seen


class Chain(Struct, frozen=True):
    """Chain of one pod's workload: the links with their states."""

    pod: str
    steps: tuple[Step, ...]

    @property
    def is_whole(self) -> bool:
        """Whether no link is broken, or waits."""
        return all(step.state in (LinkState.FINE, LinkState.UNKNOWN) for step in self.steps)


def chains_of(snapshot: Snapshot, pods: Iterable[Pod], problems: Iterable[Problem]) -> tuple[Chain, ...]:
    """Return the chains of some pods of one workload, broken ones first.

    Most of the pods break at the same link.
    """
    shown, hidden = tuple(problems), why_hidden(snapshot, Link.RUNNING)
    return broken_first(Chain(pod.subject, chain(pod, shown, _newest_warning(snapshot, pod), hidden)) for pod in pods)


def broken_first(chains: Iterable[Chain]) -> tuple[Chain, ...]:
    """Return the first chains, broken ones before others."""
    return tuple(sorted(chains, key=lambda chain: (chain.is_whole, chain.pod))[:_MOST_CHAINS])


def chain(pod: Pod, problems: Iterable[Problem], warning: str = "", hidden: str = "") -> tuple[Step, ...]:
    """Return every link in order. A link with a problem is broken, even if the pod has passed it before.

    `hidden`: what is not visible, without which a running pod does not show that its GPUs work.
    """
    waits_for = "; ".join(filter(None, (_why_waiting(pod), warning)))
    broken = ((problem.found.cause.link, problem) for problem in touching(problems, pod))
    unproven = hidden if pod.phase != "Succeeded" else ""
    return tuple(steps(tuple(Link), dict(_passed(pod)), broken, waits_for, unproven))


def touching(problems: Iterable[Problem], pod: Pod) -> Iterator[Problem]:
    """Yield problems that keep the pod itself from work, including consequences."""
    return _all(problems, frozenset((pod.subject,)))


def steps(
    links: Sequence[AnyLink],
    passed: Mapping[AnyLink, str],
    problems: Iterable[tuple[AnyLink | None, Problem]],
    waiting: str,
    hidden: str = "",
) -> Iterator[Step]:
    """Yield the steps in order; no link is reached after a broken link, or a link at which the pod waits.

    A problem without a link, as the fault of a node or component, stops the pod at its current link. `hidden`: why it
    is unknown whether the last link, if passed, is fine now.
    """
    current = next((link for link in links if link not in passed), links[-1])
    broken = grouped((link or current, problem) for link, problem in problems)
    stopped = False
    for link in links:
        here = tuple(broken.get(link, ()))
        if stopped:
            yield Step(link, LinkState.BROKEN if here else LinkState.NOT_REACHED, "", here)
        elif here:
            stopped = link is not links[-1]
            yield Step(link, LinkState.BROKEN, passed.get(link, ""), here)
        elif link in passed and hidden and link is links[-1]:
            yield Step(link, LinkState.UNKNOWN, f"{passed[link]}, but {hidden}")
        elif link in passed:
            yield Step(link, LinkState.FINE, passed[link])
        else:
            stopped = True
            yield Step(link, LinkState.WAITING, waiting)


def _passed(pod: Pod) -> Iterator[tuple[Link, str]]:
    """Yield the links that the pod's state shows as passed, up to the first link that it does not show."""
    yield Link.ADMITTED, "the pod exists"
    if pod.spec.gates:
        return
    yield Link.QUEUED, "no scheduling gate holds it"
    if not pod.spec.node:
        return
    yield Link.SCHEDULED, f"on node {pod.spec.node}"
    if not pod.states:
        runs = pod.phase in ("Running", "Succeeded")
        yield from ((link, f"its phase is {pod.phase}") for link in _ON_NODE if runs)
        return
    yield Link.ACCEPTED, "the kubelet reports its containers"
    ready = pod.condition("PodReadyToStartContainers")
    begun = [state for state in pod.states if state.running or state.ended or state.last_ended or state.started]
    if not begun and not (ready and ready.status == "True"):
        return
    yield Link.RUNTIME, "it has a sandbox"
    if not begun:
        return
    yield Link.PREPARED, "images are pulled"
    started = [state for state in begun if state.running or _ran(state.ended) or _ran(state.last_ended)]
    if not started:
        return
    yield Link.STARTED, ", ".join(state.name for state in started)
    if pod.phase == "Succeeded" or all(state.ready or state.ended for state in pod.states):
        yield Link.RUNNING, "it has succeeded" if pod.phase == "Succeeded" else "its containers run"


def _ran(ended: ContainerEnd | None) -> bool:
    return ended is not None and ended.reason not in _NEVER_STARTED


def _why_waiting(pod: Pod) -> str:
    waiting = next((state for state in pod.states if state.waiting), None)
    if waiting is not None:
        return ": ".join(filter(None, (waiting.waiting, waiting.message)))
    scheduled = pod.condition("PodScheduled")
    return scheduled.message if scheduled is not None and scheduled.status == "False" else ""


def _newest_warning(snapshot: Snapshot, pod: Pod) -> str:
    """Return the newest active warning about the pod, for use if no cause explains it."""
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return ""  # the condition has the same text
    return next(map(str, of_events(standing_events(snapshot, pod))), "")


def _all(problems: Iterable[Problem], subjects: frozenset[str]) -> Iterator[Problem]:
    """Yield problems, and their consequences, that concern one of the subjects directly."""
    for problem in problems:
        if problem.found.subject in subjects or not subjects.isdisjoint(problem.found.affected):
            yield problem
        yield from _all((child for child in problem.consequences if touches(child, subjects)), subjects)
