"""Determine the stage that a pod of a component has reached, and its present obstacle. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot.pods import ContainerEnd, ContainerState, Pod

_HARD = frozenset(
    (
        *("CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "ImageInspectError"),
    )
)
"""Waiting reasons of a container that do not end on their own."""
IMAGE = frozenset(("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName"))
_OFTEN = 3
"""With this many restarts, the last one just now, a container only runs between two crashes."""
_JUST_NOW = timedelta(minutes=10)
_LONG_GOING = timedelta(minutes=15)


class StageKind(Enum):
    """State of a pod: ready, or the reason why it is not. The value is shown to people."""

    READY = "ready"
    GOING = "being deleted"
    FAILS = "fails"
    UNPLACED = "no scheduler has bound it to a node"
    INIT = "an init container runs"
    CREATING = "no container has started"
    UNREADY = "running, but not ready"
    STUCK_GOING = "deletion requested, still present"


class Stage(Struct, frozen=True):
    """Stage of a pod. `container` is the container that it waits for.

    `since` is the time when the pod reached the stage, as far as it is known.
    """

    kind: StageKind
    container: str = ""
    reason: str = ""
    message: str = ""
    since: datetime | None = None

    def __str__(self) -> str:
        message = ": ".join(filter(None, (self.reason, self.message))) or self.kind.value
        return f"container {self.container}: {message}" if self.container else message

    def lasts(self, now: datetime, longest: timedelta) -> bool:
        """Whether the pod has been in this stage for longer than `longest`; an unknown age counts as longer."""
        return self.since is None or now - self.since > longest


def stage(pod: Pod, now: datetime) -> Stage:
    """Return the pod's stage.

    A pod that has succeeded is ready, and so is a running pod without container states.
    """
    gone = pod.meta.deleted
    if gone is not None:
        kind = StageKind.STUCK_GOING if now - gone > _LONG_GOING else StageKind.GOING
        return Stage(kind, since=gone)
    if pod.phase == "Succeeded" or (pod.phase == "Running" and not pod.states):
        return Stage(StageKind.READY)
    if pod.phase == "Failed":
        return Stage(StageKind.FAILS, "", pod.reason or "Failed", pod.message or _last_words(pod), pod.meta.created)
    if not pod.spec.node:
        condition = pod.condition("PodScheduled")
        message = condition.message if condition is not None else ""
        return Stage(
            StageKind.UNPLACED, "", condition.reason if condition is not None else "", message, pod.meta.created
        )
    return _placed(pod, now)


def _placed(pod: Pod, now: datetime) -> Stage:
    for state in pod.states:
        failing = _failing(state, now)
        if failing is not None:
            return failing
    for state in pod.states:
        if state.init and not _is_done(state, pod):
            if state.running:
                return Stage(StageKind.INIT, state.name, since=state.started or pod.meta.created)
            return Stage(StageKind.CREATING, "", state.waiting, state.message, pod.meta.created)
    others = [state for state in pod.states if not state.init]
    if not others or any(not state.running and state.ended is None for state in others):
        waiting = next((state for state in others if state.waiting), ContainerState(""))
        return Stage(StageKind.CREATING, "", waiting.waiting, waiting.message, pod.meta.created)
    unready = next((state for state in others if not state.ready), None)
    if unready is None:
        return Stage(StageKind.READY)
    return Stage(StageKind.UNREADY, unready.name, since=unready.started or pod.meta.created)


def _is_done(state: ContainerState, pod: Pod) -> bool:
    if state.ended is not None:
        return state.ended.exit_code == 0
    sidecar = any(container.sidecar and container.name == state.name for container in pod.spec.containers)
    return sidecar and state.running


def _failing(state: ContainerState, now: datetime) -> Stage | None:
    last = state.ended or state.last_ended
    if state.waiting in _HARD:
        words = _ending(last) if state.waiting == "CrashLoopBackOff" and last is not None else state.message
        return Stage(StageKind.FAILS, state.name, state.waiting, words, last.at if last is not None else None)
    if state.ended is not None and state.ended.exit_code not in (0, None):
        return Stage(StageKind.FAILS, state.name, state.ended.reason or "Error", _ending(state.ended), state.ended.at)
    crashed = state.last_ended
    if state.ready or state.restarts < _OFTEN or crashed is None or crashed.at is None or now - crashed.at > _JUST_NOW:
        return None
    return Stage(StageKind.FAILS, state.name, f"{state.restarts} restarts", _ending(crashed), crashed.at)


def _ending(ended: ContainerEnd) -> str:
    code = f"exit code {ended.exit_code}" if ended.exit_code is not None else ""
    reason = "" if ended.reason == "Error" else ended.reason
    return ", ".join(filter(None, (reason, code, ended.message.strip())))


def _last_words(pod: Pod) -> str:
    ended = next((state.ended for state in pod.states if state.ended is not None and state.ended.exit_code), None)
    return _ending(ended) if ended is not None else ""
