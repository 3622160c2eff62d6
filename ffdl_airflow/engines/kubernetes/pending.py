"""Why a gang whose pods exist does not run yet, and whether waiting can help.

For: plain pods, with volume claims, pod groups and events where they could be read → one sentence
about the most telling replica. Final is what no waiting mends: a pod that has ended, an image that
is not there, and, after a second look, an object that is missing (others may be creating it).
Everything else waits until the caller's deadline. Not for: what ended (``pod_end.py``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ffdl_airflow.engines.kubernetes import messages
from ffdl_airflow.engines.kubernetes.needs import Plain, name_of, spec_of
from ffdl_airflow.engines.kubernetes.pod_end import PodEnd, end_of, made, said
from ffdl_airflow.engines.kubernetes.pod_state import PodState, condition_of, replica_of

RECHECK_S = 30.0
"""How long an object may be missing before that is final: others may create it in parallel.
Chosen."""
_NAMED = 3
_PULLING = (
    "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName",
    "RegistryUnavailable", "ImageInspectError",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Pending:
    """Why the gang waits. ``reason`` is one sentence, ``detail["replicas"]`` are those meant.

    ``final``: waiting does not help, once it has been so for ``final_after_s``. ``end`` then tells
    it in the words of a pod's end. ``detail["others"]``: what else is said of other replicas.
    """

    reason: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    final: bool = False
    final_after_s: float = 0.0
    end: PodEnd | None = None


@dataclass(frozen=True, kw_only=True)
class _Finding:
    """What is said of one pod. The lowest ``weight`` is told first."""

    weight: int
    text: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    end: PodEnd | None = None
    after_s: float = 0.0


_ENDED, _FINAL, _RECHECKED, _STORAGE, _IMAGE, _UNSCHEDULED, _GROUP, _STARTING = range(8)


def why_pending(
    pods: Sequence[Plain],
    *,
    claims: Sequence[Plain] | None = None,
    groups: Iterable[Plain] = (),
    events: Iterable[Plain] = (),
) -> Pending | None:
    """The most telling reason over all pods of a gang; None where all of them run or ended well.

    ``claims``: the namespace's PersistentVolumeClaims, None where they were not read. ``groups``:
    the gang's own pod groups. ``events``: of these pods, both forms of the API are read.
    """
    seen = _Seen(claims, list(groups), sorted(events, key=_event_time))
    found: dict[str, tuple[_Finding, list[str]]] = {}
    for pod in pods:
        if (finding := seen.of(PodState(pod))) is not None:
            found.setdefault(finding.text, (finding, []))[1].append(replica_of(pod))
    if not found:
        return None
    (first, replicas), *rest = sorted(found.values(), key=lambda pair: pair[0].weight)
    others = [{"reason": other.text, "replicas": names} for other, names in rest]
    detail = {**first.detail, "replicas": replicas, "of": len(pods), "others": others}
    return Pending(
        reason=f"{_names(replicas)}: {first.text}", detail=detail, final=first.end is not None,
        final_after_s=first.after_s, end=first.end,
    )  # fmt: skip


@dataclass(frozen=True)
class _Seen:
    """What was read beside the pods."""

    claims: Sequence[Plain] | None
    groups: Sequence[Plain]
    events: Sequence[Plain]

    def of(self, state: PodState) -> _Finding | None:
        end = end_of(state.pod)
        if end is not None and (end.what, end.exit_code) != ("exit", 0):
            return _Finding(weight=_ENDED, text=end.message, end=end)
        if end is not None or _runs(state):
            return None
        found = [*self.claim_findings(state), *self.waiting(state)]
        found += self.starting(state) if state.node else self.unscheduled(state)
        return min(found, key=lambda finding: finding.weight)

    def claim_findings(self, state: PodState) -> Iterator[_Finding]:
        """Volume claims that are missing or lost.

        One without a volume may get it from the scheduler's choice of a node: that is told last.
        """
        if self.claims is None:
            return
        phases = self.phases()
        for name in _claims_of(state.pod):
            if name not in phases:
                yield _missing_claim(state, name)
            elif phases[name] == "Lost":
                text = f"volume claim {name} has lost its volume"
                yield _final(state, "config", text, reason="ClaimLost", claim=name)
            elif phases[name] != "Bound":
                text = f"volume claim {name} has no volume yet (phase {phases[name]})"
                yield _Finding(weight=_GROUP, text=text, detail={"claim": name})

    def phases(self) -> dict[str, object]:
        return {name_of(c): (c.get("status") or {}).get("phase") for c in self.claims or ()}

    def waiting(self, state: PodState) -> Iterator[_Finding]:
        """Containers that wait for a reason of their own."""
        for status in state.statuses("initContainerStatuses", "containerStatuses"):
            waiting = (status.get("state") or {}).get("waiting") or {}
            reason, message = str(waiting.get("reason")), str(waiting.get("message") or "")
            container = state.container(status.get("name"))
            if reason in _PULLING:
                yield self.pulling(state, container, reason=reason, message=message)
            elif reason == "CreateContainerConfigError":
                yield _config(state, container, message)
            elif reason in ("CreateContainerError", "RunContainerError"):
                yield _create(state, container, reason=reason, message=message)

    def pulling(self, state: PodState, container: Plain, *, reason: str, message: str) -> _Finding:
        image = str(container.get("image"))
        if reason == "InvalidImageName":
            text = f"{image} is no name of an image"
            return _final(state, "image", text, reason=reason, image=image)
        if reason == "ErrImageNeverPull":
            text = f"image {image} is not on node {state.node} and may not be pulled"
            return _final(state, "config", text, reason=reason, image=image)
        texts = [message, *self.told(state.pod, "Failed", "pull")]
        why, told = next(
            ((why, t) for t in texts if (why := messages.pull_error(t.replace(image, "")))),
            (None, message),
        )
        if why == "missing":
            text = f"image {image} does not exist: {told}"
            return _final(state, "image", text, reason=reason, image=image)
        if why == "refused":
            text = f"the registry refuses image {image}, check its pull secret: {told}"
            return _final(state, "image", text, reason=reason, image=image)
        return _not_pulled(image, told or reason)

    def starting(self, state: PodState) -> Iterator[_Finding]:
        """Bound, and nothing but its volumes and images can be in the way.

        The kubelet tells of an image in an event at once, in the pod's status only when it looks at
        the pod again, which may be 15 s later. What is final is for the status to say.
        """
        for image, message in self.pulls(state):
            yield _not_pulled(image, message)
        for message in self.told(state.pod, "FailedMount")[:1]:
            text = f"a volume cannot be mounted: {message}"
            missing = messages.missing_object(message)
            if missing or message.rstrip().endswith("not found"):
                more = {"missing": missing} if missing else {}
                yield _final(state, "config", text, reason="FailedMount", after_s=RECHECK_S, **more)
            else:
                yield _Finding(weight=_STORAGE, text=text)
        for message in self.told(state.pod, "FailedAttachVolume")[:1]:
            text = f"a volume is still attached to another node: {message}"
            yield _Finding(weight=_STORAGE, text=text)
        yield _Finding(weight=_STARTING, text=f"its containers are starting on {state.node}")

    def pulls(self, state: PodState) -> Iterator[tuple[str, str]]:
        """The newest event of a pull that failed, for each container that waits."""
        told = self.told(state.pod, "Failed", "pull")
        for status in state.statuses("initContainerStatuses", "containerStatuses"):
            if "waiting" in (status.get("state") or {}):
                image = str(state.container(status.get("name")).get("image"))
                yield from [(image, message) for message in told if image in message][:1]

    def unscheduled(self, state: PodState) -> Iterator[_Finding]:
        condition = condition_of(state.pod, "PodScheduled")
        if condition.get("reason") == "SchedulingGated":
            gates = [str(g.get("name")) for g in spec_of(state.pod).get("schedulingGates") or ()]
            yield _Finding(weight=_GROUP, text=f"held back by the gates {', '.join(gates)}")
        told = [condition.get("message"), *self.told(state.pod, "FailedScheduling")]
        message = next((str(text) for text in told if text), None)
        if message is not None:
            yield self.unschedulable(state, message)
        for text in filter(None, map(_group_text, self.groups)):
            yield _Finding(weight=_GROUP, text=text)
        scheduler = spec_of(state.pod).get("schedulerName") or "default-scheduler"
        yield _Finding(weight=_STARTING, text=f"{scheduler} has not looked at it yet")

    def unschedulable(self, state: PodState, message: str) -> _Finding:
        told = messages.unschedulable(message)
        if told.missing_claim:
            return _missing_claim(state, told.missing_claim)
        if told.unbound:
            phases = self.phases()
            names = [name for name in _claims_of(state.pod) if phases.get(name) != "Bound"]
            text = f"volume claims wait for a volume: {', '.join(names)}"
            return _Finding(weight=_UNSCHEDULED, text=text, detail={"claims": names})
        if told.zone:
            text = f"none of the {told.nodes} nodes can reach its volume: {message}"
            return _final(
                state, "config", text, reason="VolumeZone", after_s=RECHECK_S, nodes=told.nodes
            )
        detail = {"nodes": told.nodes, "lacking": dict(told.lacking)}
        return _Finding(weight=_UNSCHEDULED, text=told.text, detail=detail)

    def told(self, pod: Plain, reason: str, word: str = "") -> list[str]:
        """Messages of the pod's events of this reason that hold the word, newest first."""
        return [
            message for event in reversed(self.events)
            if _subject(event).get("name") == name_of(pod) and event.get("reason") == reason
            and word in (message := str(event.get("message") or event.get("note") or ""))
        ]  # fmt: skip


def _final(
    state: PodState, what: str, text: str, *, reason: str, after_s: float = 0.0, **detail: object
) -> _Finding:
    end = made(state, what, text, reason=reason, ran=False)
    weight = _RECHECKED if after_s else _FINAL
    return _Finding(weight=weight, text=text, detail=detail, end=end, after_s=after_s)


def _not_pulled(image: str, told: str) -> _Finding:
    text = f"image {image} cannot be pulled yet: {messages.pull_cause(told) or told}"
    return _Finding(weight=_IMAGE, text=text, detail={"image": image})


def _missing_claim(state: PodState, name: str) -> _Finding:
    text = f"volume claim {name} does not exist"
    return _final(state, "config", text, reason="ClaimMissing", after_s=RECHECK_S, claim=name)


def _config(state: PodState, container: Plain, message: str) -> _Finding:
    text = f"container {container.get('name')} cannot be created: {message}"
    missing = messages.missing_object(message)
    if missing or "runAsNonRoot" in message:
        more = {"missing": missing} if missing else {}
        reason = "CreateContainerConfigError"
        return _final(state, "config", text, reason=reason, after_s=RECHECK_S, **more)
    return _Finding(weight=_STARTING, text=text)


def _create(state: PodState, container: Plain, *, reason: str, message: str) -> _Finding:
    told = messages.start_error(message, str(container.get("image")))
    if told.what == "start-error" and told.text == message:  # a runtime that may yet manage it
        text = f"container {container.get('name')} cannot be created: {message}"
        return _Finding(weight=_STARTING, text=text)
    end = said(state, told, reason, container=container.get("name"))
    return _Finding(weight=_FINAL, text=told.text, end=end)


def _group_text(group: Plain) -> str | None:
    for kind, status in (("PodGroupInitiallyScheduled", "False"), ("Unschedulable", "True")):
        condition = condition_of(group, kind)
        if condition.get("status") == status:
            why = condition.get("message") or condition.get("reason")
            return f"pod group {name_of(group)} cannot be placed: {why}"
    return None


def _runs(state: PodState) -> bool:
    statuses = state.statuses("containerStatuses")
    running = all("running" in (status.get("state") or {}) for status in statuses)
    return state.status.get("phase") == "Running" and running


def _claims_of(pod: Plain) -> list[str]:
    volumes = spec_of(pod).get("volumes") or ()
    claims = (volume.get("persistentVolumeClaim") for volume in volumes)
    return [str(claim.get("claimName")) for claim in claims if claim]


def _subject(event: Plain) -> Plain:
    subject: Plain = event.get("involvedObject") or event.get("regarding") or {}
    return subject


def _event_time(event: Plain) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, times), ""))


def _names(replicas: Sequence[str]) -> str:
    if len(replicas) <= _NAMED:
        return ", ".join(replicas)
    return f"{replicas[0]} to {replicas[-1]} ({len(replicas)} replicas)"
