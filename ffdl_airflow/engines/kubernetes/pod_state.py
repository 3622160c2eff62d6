"""The last state of a pod: what its status says of containers, conditions, times.

For: one plain pod → plain questions answered. Not for: what it means (``pod_end.py``,
``pending.py``). Times are the control plane's, UTC; a time that is not set, or is a runtime's zero
(1970-01-01, seen on containers that never started), is None.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from ffdl_airflow.core.events import parse_iso
from ffdl_airflow.engines.kubernetes import names, needs
from ffdl_airflow.engines.kubernetes.needs import Plain, spec_of

UNKNOWN_CONTAINER = "ContainerStatusUnknown"
_FIRST_YEAR = 2000


def replica_of(pod: Plain) -> str:
    """The replica that a pod is, by its label; its own name where it has none."""
    return str(needs.labels_of(pod).get(names.REPLICA) or needs.name_of(pod))


def condition_of(thing: Plain, kind: str) -> Plain:
    """A condition of any object, empty where it has none of that type."""
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind), {})


def time_of(text: object) -> datetime | None:
    """A time of the API."""
    try:
        moment = parse_iso(str(text))
    except ValueError:
        return None
    return moment if moment.year >= _FIRST_YEAR else None


@dataclass(frozen=True)
class PodState:
    """A pod as it was seen last. ``deleted``: it is gone from the API since."""

    pod: Plain
    deleted: bool = False

    @property
    def status(self) -> Plain:
        """The pod's status."""
        status: Plain = self.pod.get("status") or {}
        return status

    @property
    def node(self) -> str | None:
        """Name of the node it is bound to."""
        return spec_of(self.pod).get("nodeName")

    @property
    def silent(self) -> bool:
        """Whether its node has not answered for the control plane's grace time.

        The node's controller then calls the pod not ready, and nothing else of its status changes;
        a kubelet that speaks says so of its containers first. Pods with gates of their own are
        not judged. No right to read nodes is needed.
        """
        ready, containers = (condition_of(self.pod, kind).get("status")
                             for kind in ("Ready", "ContainersReady"))  # fmt: skip
        gates = spec_of(self.pod).get("readinessGates")
        return (ready, containers) == ("False", "True") and not gates and not self.over

    @property
    def over(self) -> bool:
        """Whether no container runs any more, by its phase."""
        return self.status.get("phase") in ("Succeeded", "Failed")

    def statuses(self, *fields: str) -> list[Plain]:
        """The statuses of its containers under ``containerStatuses``, ``initContainerStatuses``."""
        return [status for field in fields for status in self.status.get(field) or ()]

    def main_names(self) -> set[object]:
        """Names of the containers that are no init containers, as far as the status has them."""
        return {status.get("name") for status in self.statuses("containerStatuses")}

    def container(self, name: object) -> Plain:
        """A container's spec, empty where there is none of that name."""
        return next((c for c in needs.containers(self.pod) if c.get("name") == name), {})

    def ended(self) -> Iterator[tuple[Plain, Plain]]:
        """(status, terminated) of each container that has ended, sidecars left out.

        One that was started again has ended too: the gang of a static job cannot take it back.
        """
        for status in self.statuses("containerStatuses", "initContainerStatuses"):
            before = (status.get("lastState") or {}).get("terminated")
            again = before if status.get("restartCount") else None
            found = again or (status.get("state") or {}).get("terminated")
            if found and self.container(status.get("name")).get("restartPolicy") != "Always":
                yield status, found

    def ran(self) -> bool:
        """Whether a container has started that is no init container, or nothing denies it."""
        statuses = self.statuses("containerStatuses")
        if not statuses:
            past_pending = self.status.get("phase") not in (None, "Pending")
            return past_pending and self.status.get("startTime") is not None
        return any(
            _has_run(state)
            for status in statuses
            for state in (status.get("state") or {}, status.get("lastState") or {})
        )

    def condition_at(self, kind: str) -> datetime | None:
        """When a condition changed last."""
        return time_of(condition_of(self.pod, kind).get("lastTransitionTime"))

    def noticed_at(self) -> datetime | None:
        """When its end began: a disruption was announced, else a container ended, else unready."""
        ends = (time_of(ended.get("finishedAt")) for _, ended in self.ended())
        times = [self.condition_at("DisruptionTarget"), *ends, self.condition_at("Ready")]
        return next((moment for moment in times if moment is not None), None)

    def asked_at(self) -> datetime | None:
        """When its deletion was asked for: the API tells when the grace period will be over."""
        meta = self.pod.get("metadata") or {}
        due = time_of(meta.get("deletionTimestamp"))
        grace_s = float(meta.get("deletionGracePeriodSeconds") or 0)
        return due - timedelta(seconds=grace_s) if due else None

    def removed_first(self) -> bool:
        """Whether its deletion was asked for before a container failed or the pod was over."""
        asked, main = self.asked_at(), self.main_names() if self.over else set()
        ends = [
            time_of(ended.get("finishedAt"))
            for status, ended in self.ended()
            if ended.get("exitCode") or status.get("name") in main
        ]
        return asked is not None and all(moment is None or moment >= asked for moment in ends)


def _has_run(state: Plain) -> bool:
    ended = state.get("terminated") or {}
    return (
        "running" in state
        or ended.get("reason") == UNKNOWN_CONTAINER
        or time_of(ended.get("startedAt")) is not None
    )
