"""The Lease that lets one gang place at a time, so that two half-placed gangs never exist.

Its holder is a placement, not a driver: who drives that placement goes on with it. A holder that
is not heard of for ``LEASE_S`` has lost it; who takes it then first rolls back what it left, if
that is in the own namespace. That time is measured here, from the change that was seen last,
because clocks of hosts differ.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ffdl_airflow.engines.kubernetes.client import ApiError
from ffdl_airflow.engines.kubernetes.cluster import Cluster

Document = dict[str, Any]

NAME = "ffdl-turnstile-default"
LEASE_S = 15
"""How long a Lease counts from its last renewal: Kubernetes' own leader election has 15 s."""
RENEW_S = 5.0
"""A renewal that is younger is not repeated. Chosen: a third of the Lease."""
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"  # MicroTime


@dataclass(frozen=True)
class Entered:
    """The Lease is the placement's."""


@dataclass(frozen=True)
class Busy:
    """Another gang is being placed: the name of its anchor, and its namespace."""

    holder: str
    namespace: str


class Turnstile:
    """The Lease of all nodes on which the installation places."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._name = NAME
        self._namespace = cluster.settings.lease_namespace
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases"
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed: tuple[str, float] = ("", 0.0)

    def enter(self, anchor: str) -> Entered | Busy:
        """Take the Lease for a placement, or renew it."""
        holder_here, at = self._renewed
        if holder_here == anchor and time.monotonic() - at < RENEW_S:
            return Entered()
        own = self._identity(anchor)
        with self._cluster.saying("take the turnstile's lease", namespace=self._namespace):
            lease = self._read() or self._create()
            holder = str(lease["spec"].get("holderIdentity") or "")
            if holder not in ("", own) and not self._expired(lease):
                namespace, _, name = holder.rpartition("/")
                return Busy(name, namespace)
            if not self._write(lease, holder=own, fresh=holder != own):
                return Busy("another gang", self._cluster.settings.namespace)
        self._renewed = (anchor, time.monotonic())
        return Entered()

    def is_held_by(self, anchor: str) -> bool:
        """Whether this process has entered for that placement and has not left since."""
        return self._renewed[0] == anchor

    def leave(self, anchor: str) -> None:
        """Give the Lease back, where it is the placement's."""
        self._renewed = ("", 0.0)
        with self._cluster.saying("give the turnstile's lease back", namespace=self._namespace):
            lease = self._read()
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity(anchor):
                self._write(lease, holder="", fresh=False)

    def _identity(self, anchor: str) -> str:
        """What the Lease says of its holder: gangs of several namespaces may share it."""
        return f"{self._cluster.settings.namespace}/{anchor}"

    def _expired(self, lease: Mapping[str, Any]) -> bool:
        version = str(lease["metadata"]["resourceVersion"])
        if self._seen[0] != version:
            self._seen = (version, time.monotonic())
        return time.monotonic() - self._seen[1] > LEASE_S

    def _read(self) -> Document | None:
        try:
            return self._cluster.client.get(f"{self._path}/{self._name}")
        except ApiError as error:
            if error.not_found and not error.namespace_missing:
                return None
            raise

    def _create(self) -> Document:
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": {"holderIdentity": "", "leaseDurationSeconds": LEASE_S}}  # fmt: skip
        try:
            return self._cluster.client.create(self._path, body)
        except ApiError as error:
            if not error.conflict:
                raise
            return self._cluster.client.get(f"{self._path}/{self._name}")

    def _write(self, lease: Mapping[str, Any], *, holder: str, fresh: bool) -> bool:
        """False where somebody else was quicker."""
        now = datetime.now(timezone.utc).strftime(_TIME)
        spec = {**lease["spec"], "holderIdentity": holder, "leaseDurationSeconds": LEASE_S,
                "renewTime": now}  # fmt: skip
        if fresh:
            spec["acquireTime"] = spec["renewTime"]
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        try:
            path = f"{self._path}/{self._name}"
            self._cluster.client.replace(path, {**lease, "spec": spec})
        except ApiError as error:
            if error.conflict:
                return False
            raise
        return True
