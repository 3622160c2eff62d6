"""Gangs as pods: an anchor object stands for a placement, owns all of it, and is its fence.

The anchor is a ConfigMap. Its annotation says how far the placement is: ``waiting`` (nothing is
there), ``placing`` (pods are being made, under the turnstile's Lease), ``placed`` (all were bound).
A placement that was ended has a tombstone under the same name, so that nothing is made of it again;
what a late driver still creates is owned by the old anchor, and goes with it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.agent.detached import Runner
from ffdl_airflow.core.errors import FieldProblem, InfrastructureError
from ffdl_airflow.core.findings import Finding
from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.core.observation import (
    Inventory,
    Observation,
    Presence,
    SlotUse,
    with_journal,
)  # fmt: skip
from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines.base import (
    Ending,
    EndRequest,
    Evidence,
    Granted,
    Over,
    ProcessLog,
    Waiting,
)
from ffdl_airflow.engines.client import HttpAgentClient
from ffdl_airflow.engines.kubernetes import admission, doctor, names, render
from ffdl_airflow.engines.kubernetes.capacity import holder
from ffdl_airflow.engines.kubernetes.cluster import (
    Cluster,
    Document,
    is_leaving,
    is_over,
    is_running,
    stage_of,
)  # fmt: skip
from ffdl_airflow.engines.kubernetes.ending import Endings
from ffdl_airflow.engines.kubernetes.gang import RemoteGang
from ffdl_airflow.engines.kubernetes.losses import Losses
from ffdl_airflow.engines.kubernetes.movers import Movers
from ffdl_airflow.engines.kubernetes.needs import labels_of
from ffdl_airflow.engines.kubernetes.placing import Placer
from ffdl_airflow.engines.kubernetes.pod_state import PodState
from ffdl_airflow.engines.kubernetes.preview import Preview
from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings
from ffdl_airflow.engines.kubernetes.survey import (
    gpus_of_node,
    gpus_of_pod,
    known_priorities,
    survey,
)  # fmt: skip
from ffdl_airflow.engines.kubernetes.transport import Pod, PodTransport
from ffdl_airflow.engines.logs import process_logs

_UNHEARD_S = 10.0
"""Chosen: above the 5 s of a call, so that one that was lost with a connection is tried again."""


class KubernetesEngine(Preview):
    """See :mod:`ffdl_airflow.engines.base` for what is promised."""

    def __init__(self, settings: KubernetesSettings) -> None:
        super().__init__(settings)
        self.cluster = Cluster(settings)
        self._placer = Placer(self.cluster)
        self._losses = Losses(self.cluster)
        self._endings = Endings(self.cluster)
        self._movers = Movers(self.cluster)
        self._gangs: dict[str, RemoteGang] = {}

    def capacity(self) -> Inventory:
        """GPUs of the cluster's nodes, as far as we may look; 0 where nodes may not be read."""
        seen = survey(self.cluster)
        total = sum(gpus_of_node(self.cluster, node) for node in seen.nodes or ())
        holders: list[str | None] = [
            name for pod in seen.pods for name in [holder(pod)] * gpus_of_pod(pod)
        ]
        holders += [None] * (total - len(holders))
        uses = tuple(SlotUse(slot=n, placement=name) for n, name in enumerate(holders))
        return Inventory(total=total, free=holders.count(None), uses=uses, gpus=total)

    def check(self, job: TrainingJob) -> Sequence[FieldProblem]:
        """Template, images, priority class, and what the API server says to such pods.

        What there is too little of is told while it waits.
        """
        found = [*super().check(job), *self._folders(job), *self._priority(job)]
        return found or admission.problems(job, self.cluster)

    def reserve(self, plan: GangPlan) -> Granted | Waiting | Over:
        """Make the gang's pods, all or none of which keep their nodes."""
        return self._placer.reserve(plan)

    def mover(self, folders: Sequence[str]) -> Runner | None:
        """See ``SupportsMover``: Jobs, where an image for them is set and they see all of it."""
        return self._movers if self._movers.sees(folders) else None

    def connect(self, placement_id: str) -> RemoteGang:
        """Control through the API server's pod proxy, else by commands in the pod."""
        known = self._gangs.get(placement_id)
        if known is not None:
            return known
        anchor = self.cluster.anchor(placement_id)
        coordinator = (anchor or {}).get("data", {}).get("coordinator")
        gang = self._gang(placement_id, coordinator or "nobody")
        if coordinator:
            self._gangs[placement_id] = gang
        return gang

    def observe(self, placement_id: str, after: int) -> Observation:
        """Pods from the watch, status and journal from the coordinator, else from the volume."""
        anchor = self.cluster.anchor(placement_id)
        pods = self.cluster.pods(placement_id)
        if anchor is None or (not pods and stage_of(anchor) == "waiting"):
            return Observation(presence=Presence.ABSENT)
        status: Mapping[str, Any] | None = None
        entries: Sequence[Mapping[str, Any]] = ()
        if any(is_running(pod) for pod in pods.values()):
            doubt = any(PodState(pod).silent for pod in pods.values())
            status, entries = self.connect(placement_id).look(after, doubt=doubt)
        if status is None:
            entries = self._from_volume(anchor, after) or entries
            self.connect(placement_id).heed(entries)
        nodes = {name: str(pod["spec"].get("nodeName")) for name, pod in sorted(pods.items())}
        heard = (status or {}).get("joined") or ()
        seen = Observation(
            presence=Presence.ALIVE if status else self._presence(anchor, pods), status=status,
            lost=tuple(self._losses.of(anchor, pods, heard=heard)),
            unsaid=tuple(name for name, pod in pods.items() if _says_it_runs(pod)),
            waiting=None if status else self._losses.waiting(anchor, pods),
        )  # fmt: skip
        return with_journal(seen, entries, placed={"nodes": nodes})

    def _presence(self, anchor: Document, pods: Mapping[str, Document]) -> Presence:
        """Of a gang that does not answer: by its coordinator, without whom there is none.

        One on a node that does not answer either is believed gone after ``_UNHEARD_S``.
        """
        coordinator = anchor["data"].get("coordinator")
        if stage_of(anchor) != "placed" or coordinator is None:
            alive = any(not is_over(pod) for pod in pods.values())
            return Presence.ALIVE if alive else Presence.GONE
        placement_id = anchor["data"]["placement"]
        pod = pods.get(coordinator) or self.cluster.confirmed(placement_id, coordinator)
        if pod is None or is_over(pod):
            return Presence.GONE
        if not PodState(pod).silent:
            return Presence.ALIVE
        unheard_s = self._unheard_s(self.connect(placement_id))
        return Presence.UNKNOWN if unheard_s < _UNHEARD_S else Presence.GONE

    def _unheard_s(self, gang: RemoteGang) -> float:
        """For how long a coordinator has not answered, while the API server let us ask it."""
        return time.monotonic() - max(gang.heard_at, self.cluster.client.unreachable_at)

    def end(self, placement_id: str, request: EndRequest) -> Evidence | Ending:
        """Close the fence, tell the gang to leave, delete what is left."""
        self._placer.ended(placement_id)
        answer = self._endings.end(placement_id, request, gang=self.connect(placement_id))
        if isinstance(answer, Evidence):
            self._gangs.pop(placement_id, None)
            self._losses.forget(placement_id)
        return answer

    def logs(self, job_id: str) -> Sequence[ProcessLog]:
        """Logs of all processes of the job, where this host sees the volume of its checkpoints."""
        journals = {
            int(labels_of(anchor)[names.PLACEMENT]): Path(anchor["data"]["journal"])
            for anchor in self.cluster.anchors().values()
            if anchor["data"]["placement"].startswith(f"{job_id}/") and self.cluster.is_ours(anchor)
            and self.settings.shared and "journal" in anchor["data"]
        }  # fmt: skip
        return process_logs({
            number: journal.parents[1] / render.LOG_DIR / str(number)
            for number, journal in journals.items()
        })  # fmt: skip

    def examine(self, folders: Mapping[str, str], *, image: str | None) -> Sequence[Finding]:
        """Versions, rights, admission, volumes, GPUs, quotas; names and proxy by a trial."""
        return doctor.examine(self.cluster, folders, image=image)

    def placements(self) -> Sequence[str]:
        """Placements of which an anchor stands or a pod is left."""
        return sorted(
            anchor["data"]["placement"] for anchor in self.cluster.anchors().values()
            if stage_of(anchor) != "ended" and self.cluster.is_ours(anchor)
        )  # fmt: skip

    def _folders(self, job: TrainingJob) -> Iterator[FieldProblem]:
        """Those that the job's pods have to see, and are on none of their volumes."""
        folders = {f"[ffdl] {key}": folder for key, folder in self.settings.folders}
        if job.spec.checkpoint.path is not None:
            folders.pop("[ffdl] checkpoint_root", None)
            folders["spec.checkpoint.path"] = job.spec.checkpoint.path
        if not job.spec.dataStores and job.spec.training.code is None:
            folders.pop("[ffdl] cache_dir", None)
        mounts = ", ".join(volume.path for volume in self.settings.volumes) or "none is set"
        for field, folder in folders.items():
            volume = self.settings.volume_of(folder)
            if volume is None:
                yield FieldProblem(field, folder, f"a folder on one of [ffdl] volumes ({mounts})")
            elif volume.read_only and "checkpoint" in field:
                yield FieldProblem(field, folder, f"volume {volume.claim} mounted without :ro")

    def _priority(self, job: TrainingJob) -> Sequence[FieldProblem]:
        """A class that the cluster does not have, where we may and can read them."""
        try:
            known = known_priorities(self.cluster)
        except InfrastructureError:
            return ()
        wanted = job.spec.priority
        if known is None or wanted in known:
            return ()
        own = sorted(name for name in known if not name.startswith("system-"))
        allowed = f"a PriorityClass of the cluster ({', '.join(own) or 'it has none'})"
        return [FieldProblem("spec.priority", repr(wanted), allowed)]

    def _gang(self, placement_id: str, coordinator: str) -> RemoteGang:
        settings = self.settings
        gangs: list[RemoteGang] = []  # of one, once it is made
        pod = Pod(path=self.cluster.path("pods", names.pod_name(placement_id, coordinator)),
                  port=names.AGENT_PORT, python=settings.python)  # fmt: skip
        transport = PodTransport(self.cluster.client, pod)

        def lives() -> bool:
            """Also false where a silent node's coordinator has let us wait in vain."""
            found = self.cluster.pods(placement_id).get(coordinator)
            if found is None or not is_running(found):
                return False
            return not PodState(found).silent or self._unheard_s(gangs[0]) < _UNHEARD_S

        token = protocol.token_for(settings.installation_key, placement_id)
        gangs.append(RemoteGang(HttpAgentClient(transport, token, reachable=lives), lives=lives))
        return gangs[0]

    def _from_volume(self, anchor: Document, after: int) -> Sequence[Mapping[str, Any]]:
        """The journal's file, where this host sees the volumes."""
        path = anchor["data"].get("journal")
        return protocol.read_journal(path, after) if path and self.settings.shared else ()


def _says_it_runs(pod: Document) -> bool:
    """Whether the control plane knows of no end of the pod, nor of its node's."""
    return not (is_over(pod) or is_leaving(pod) or PodState(pod).silent)
