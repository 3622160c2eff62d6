"""Plan → plain documents: everything that the engine would send. Pure: no cluster is asked.

The pods meet the *restricted* pod security standard, ask for GPUs in limits only (extended
resources cannot be overcommitted), and get no token of the API. An init container brings the agent,
so that the user's image stays as it is.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

from ffdl_airflow.agent import detached, protocol
from ffdl_airflow.core.events import iso
from ffdl_airflow.core.plan import GangPlan, ReplicaPlan
from ffdl_airflow.engines.kubernetes import names
from ffdl_airflow.engines.kubernetes.node_match import groups_of
from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings
from ffdl_airflow.engines.kubernetes.template import TRAINER, merged
from ffdl_airflow.engines.plan_document import (
    agent_command,
    gang_document,
    journal_path,
    replica_document,
)  # fmt: skip

Document = dict[str, Any]

PLACEMENT_DIR, RUN_DIR, AGENT_DIR = "/ffdl/placement", "/ffdl/run", "/ffdl/agent"
AGENT_FILE = "agent.pyz"
LOG_DIR = "logs"
"""Below the checkpoint directory: what the ranks print, by placement and replica."""
TERMINATION_LOG = "/dev/termination-log"  # Kubernetes' default path
MARGIN_S = 7
"""What a pod's grace period is longer than a save may take: SIGTERM, 5 s, SIGKILL and the journal's
last sync have to fit."""
MEMORY_FACTOR = 1.25
"""The request is the estimate and a quarter: page cache and loaders are rarely in it. Chosen."""
CPU_SHARE = 0.5
"""What of its cores a replica asks for: trainers leave cores idle while the GPU works. Chosen."""
MOVER_KEPT_S = 600
"""A Job that has ended is kept so long for whoever looks. Chosen."""
GPU = "nvidia.com/gpu"
PODGROUPS = "scheduling.k8s.io/v1beta1"
"""Kubernetes' own gangs, since 1.37."""
HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def anchor(plan: GangPlan, settings: KubernetesSettings) -> Document:
    """What stands for the placement: made first, owns all others, says how far it is."""
    metadata = _metadata(plan, settings)
    metadata["labels"] |= {names.ANCHOR: "true"}
    return {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {**metadata, "annotations": {names.STAGE: "waiting"}},
        "data": {"placement": plan.placement_id, "priority": plan.priority, "queue": plan.queue,
                 "replicas": str(len(plan.replicas)), "coordinator": plan.replicas[0].name,
                 "names": " ".join(replica.name for replica in plan.replicas),
                 "journal": journal_path(plan), "asked-at": iso(plan.asked_at),
                 "placement-s": f"{plan.timing.placement_s:g}",
                 "silent-s": f"{plan.timing.silent_s:g}"},
    }  # fmt: skip


def tombstone(placement_id: str, settings: KubernetesSettings, *, mode: str,
              data: Mapping[str, str]) -> Document:  # fmt: skip
    """What stays under the anchor's name: nothing is made of this placement any more."""
    job_id, number = placement_id.rsplit("/", 1)
    installation = names.installation_id(settings.installation_key)
    labels = {names.JOB: names.label_value(job_id), names.PLACEMENT: number,
              names.INSTALLATION: installation, names.ANCHOR: "true",
              names.ENDED: mode}  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": names.gang_name(placement_id), "namespace": settings.namespace,
                     "labels": labels},
        "data": {"placement": placement_id, **data},
    }  # fmt: skip


def service(plan: GangPlan, settings: KubernetesSettings) -> Document:
    """Names for the replicas, from before they are ready until they are gone."""
    selector = {names.JOB: names.label_value(plan.job_id), names.PLACEMENT: str(plan.placement),
                names.INSTALLATION: names.installation_id(settings.installation_key)}  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": _metadata(plan, settings),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector,
                 "ports": [{"name": "agent", "port": names.AGENT_PORT}]},
    }  # fmt: skip


def of_coordinator(service: Document, plan: GangPlan) -> Document:
    """The service as a round makes it: a name for the coordinator alone, whom agents look for.

    Else the control plane would write its list of addresses anew for pod after pod while they are
    placed, which took a big gang a tenth of its time.
    """
    spec, only = service["spec"], {names.REPLICA: plan.replicas[0].name}
    return {**service, "spec": {**spec, "selector": {**spec["selector"], **only}}}


def secret(plan: GangPlan, settings: KubernetesSettings) -> Document:
    """The plan and the placement's token, mounted by the kubelet; nobody has to read it back."""
    token = protocol.token_for(settings.installation_key, plan.placement_id)
    return {
        "apiVersion": "v1", "kind": "Secret", "metadata": _metadata(plan, settings),
        "type": "Opaque", "immutable": True,
        "stringData": {protocol.PLAN_FILE: json.dumps(document(plan), sort_keys=True),
                       protocol.TOKEN_FILE: token},
    }  # fmt: skip


def pods(plan: GangPlan, settings: KubernetesSettings) -> list[Document]:
    """One pod for each replica, in the plan's order, without an owner."""
    return [_pod(plan, replica, settings) for replica in plan.replicas]


def owned(found: Document, owner: Mapping[str, Any]) -> Document:
    """The object as one that goes with its owner."""
    reference = {"apiVersion": "v1", "kind": owner.get("kind", "ConfigMap"),
                 "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}  # fmt: skip
    return {**found, "metadata": {**found["metadata"], "ownerReferences": [reference]}}


def mover(name: str, words: Sequence[str], settings: KubernetesSettings) -> Document:
    """A Job that does a piece of data work: it runs as whoever drives, whose files it works on."""
    labels = {names.MOVER: name,
              names.INSTALLATION: names.installation_id(settings.installation_key)}  # fmt: skip
    mounts, volumes = _claims(settings)
    container = {
        "name": "mover", "image": settings.mover_image,
        "command": ["python3", "-m", detached.__name__, *words],
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"},
                      "limits": {"cpu": "4", "memory": "4Gi"}},  # chosen: it streams
        "volumeMounts": mounts, "securityContext": _container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }  # fmt: skip
    user = os.geteuid()
    security = {**_pod_security(settings), "runAsUser": user, "runAsGroup": os.getegid(),
                "runAsNonRoot": user != 0}  # fmt: skip
    spec: Document = {
        "restartPolicy": "Never", "automountServiceAccountToken": False,
        "enableServiceLinks": False, "securityContext": security,
        "tolerations": [one.document() for one in settings.tolerations],
        "containers": [container], "volumes": volumes,
    }  # fmt: skip
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": MOVER_KEPT_S,
                 "template": {"metadata": {"labels": labels}, "spec": spec}},
    }  # fmt: skip


def pod_group(name: str, count: int, priority: str | None = None) -> Document:
    """A group that Kubernetes itself binds when so many of its pods have room.

    The scheduler leaves a group alone whose ``priority`` class is not worth what its pods' is.
    """
    spec: Document = {"schedulingPolicy": {"gang": {"minCount": count}}}
    if priority is not None:
        spec["priorityClassName"] = priority
    return {"apiVersion": PODGROUPS, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def member(pod: Document, group: str) -> Document:
    """The pod as one of a group."""
    return {**pod, "spec": {**pod["spec"], "schedulingGroup": {"podGroupName": group}}}


def kept_to(pod: Document, hosts: Sequence[str]) -> Document:
    """The pod as one that goes to these nodes only, by their host names.

    Added to what a template demands: terms are alternatives, so each gets the expression; one that
    says nothing matches no node, and stays so.
    """
    here = {"key": HOSTNAME, "operator": "In", "values": list(hosts)}
    affinity = pod["spec"].get("affinity") or {}
    of_node = affinity.get("nodeAffinity") or {}
    known = (of_node.get(_REQUIRED) or {}).get("nodeSelectorTerms")
    terms = [_and(term, here) for term in known] if known else [{"matchExpressions": [here]}]
    of_node = {**of_node, _REQUIRED: {"nodeSelectorTerms": terms}}
    return {**pod, "spec": {**pod["spec"], "affinity": {**affinity, "nodeAffinity": of_node}}}


def _and(term: Mapping[str, Any], expression: Document) -> Document:
    said = term.get("matchExpressions") or ()
    if not (said or term.get("matchFields")):
        return dict(term)
    return {**term, "matchExpressions": [*said, expression]}


def demand(gang: Iterable[Document]) -> str:
    """What a gang's pods need, for the turns of those who wait (``turns.py``)."""
    return json.dumps([group.document() for group in groups_of(gang)])


def document(plan: GangPlan) -> Document:
    """What the agents read."""
    replicas = [
        replica_document(
            replica, folder=RUN_DIR, socket=f"{RUN_DIR}/{replica.name}.sock", inherits=True,
            logs=f"{plan.common['checkpoint_dir']}/{LOG_DIR}/{plan.placement}/{replica.name}",
        )
        for replica in plan.replicas
    ]  # fmt: skip
    coordinator = {"host": host_of(plan, plan.replicas[0]), "port": names.AGENT_PORT}
    return gang_document(
        plan, replicas, coordinator=coordinator, local=False, termination=TERMINATION_LOG,
        grace_s=max(1.0, _grace_period_s(plan) - MARGIN_S),
    )  # fmt: skip


def host_of(plan: GangPlan, replica: ReplicaPlan) -> str:
    """The name by which the others of the gang reach a replica."""
    return names.host_of(plan.placement_id).replace("{replica}", replica.name)


def _pod(plan: GangPlan, replica: ReplicaPlan, settings: KubernetesSettings) -> Document:
    metadata = _metadata(plan, settings)
    metadata["name"] = names.pod_name(plan.placement_id, replica.name)
    installation = names.installation_id(settings.installation_key)
    metadata["labels"] = names.pod_labels(plan, replica, installation)
    spec: Document = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": ceil(_grace_period_s(plan)),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": replica.name,
        "subdomain": names.gang_name(plan.placement_id),
        "priorityClassName": plan.priority,
        "securityContext": _pod_security(settings),
        "tolerations": [one.document() for one in settings.tolerations],
        "initContainers": [_agent_container(settings)],
        "containers": [_trainer(replica, settings)],
        "volumes": _volumes(plan, replica, settings),
    }
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    if plan.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return merged(pod, replica.templates)


def _trainer(replica: ReplicaPlan, settings: KubernetesSettings) -> Document:
    mounts = [{"name": "placement", "mountPath": PLACEMENT_DIR, "readOnly": True},
              {"name": "run", "mountPath": RUN_DIR},
              {"name": "agent", "mountPath": AGENT_DIR, "readOnly": True},
              {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - in the pod  # fmt: skip
    mounts += _claims(settings)[0]
    return {
        "name": TRAINER, "image": replica.image,
        "command": agent_command(settings.python, agent=f"{AGENT_DIR}/{AGENT_FILE}",
                                 folder=PLACEMENT_DIR, replica=replica.name),
        "env": [{"name": "HOME", "value": RUN_DIR},  # no user has this id, so none has a home
                *(_from_secret(name, ref) for name, ref in sorted(replica.secrets.items()))],
        "resources": resources(replica), "volumeMounts": mounts,
        "ports": [{"name": "agent", "containerPort": names.AGENT_PORT}],
        "securityContext": _container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }  # fmt: skip


def resources(replica: ReplicaPlan) -> Document:
    """Requests and limits of a replica."""
    wants = replica.wants
    requests: Document = {"cpu": f"{ceil(wants.cpu * 1000 * CPU_SHARE)}m"}
    limits: Document = {"cpu": f"{ceil(wants.cpu * 1000)}m"}
    if wants.memory is not None:
        memory = str(ceil(wants.memory * MEMORY_FACTOR))
        requests["memory"] = limits["memory"] = memory
    if wants.gpu:
        limits[GPU] = str(wants.gpu)
    return {"requests": requests, "limits": limits}


def _from_secret(name: str, ref: tuple[str, str]) -> Document:
    secret_name, key = ref
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_name, "key": key}}}


def _agent_container(settings: KubernetesSettings) -> Document:
    return {
        "name": "agent", "image": settings.agent_image,
        "command": ["/bin/cp", f"/{AGENT_FILE}", f"{AGENT_DIR}/{AGENT_FILE}"],
        "volumeMounts": [{"name": "agent", "mountPath": AGENT_DIR}],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"},
                      "limits": {"cpu": "1", "memory": "64Mi"}},
        "securityContext": _container_security(),
    }  # fmt: skip


def _volumes(plan: GangPlan, replica: ReplicaPlan, settings: KubernetesSettings) -> list[Document]:
    shared: Document = {"medium": "Memory"}
    if replica.wants.sharedMemory is not None:
        shared["sizeLimit"] = str(replica.wants.sharedMemory)
    found: list[Document] = [
        {"name": "placement", "secret": {"secretName": names.gang_name(plan.placement_id),
                                         "defaultMode": 0o440}},
        {"name": "run", "emptyDir": {}}, {"name": "agent", "emptyDir": {}},
        {"name": "shm", "emptyDir": shared},
    ]  # fmt: skip
    return found + _claims(settings)[1]


def _claims(settings: KubernetesSettings) -> tuple[list[Document], list[Document]]:
    """The installation's volumes: how a container mounts them, and what they are to its pod."""
    mounts: list[Document] = []
    volumes: list[Document] = []
    for number, volume in enumerate(settings.volumes):
        name = f"volume-{number}"
        mounts.append({"name": name, "mountPath": volume.path, "readOnly": volume.read_only})
        claim = {"claimName": volume.claim, "readOnly": volume.read_only}
        volumes.append({"name": name, "persistentVolumeClaim": claim})
    return mounts, volumes


def _pod_security(settings: KubernetesSettings) -> Document:
    found: Document = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if settings.run_as_user is not None:
        found["runAsUser"] = settings.run_as_user
    if settings.fs_group is not None:
        found |= {"fsGroup": settings.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    return found


def _container_security() -> Document:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _metadata(plan: GangPlan, settings: KubernetesSettings) -> Document:
    labels = names.gang_labels(plan, names.installation_id(settings.installation_key))
    return {"name": names.gang_name(plan.placement_id), "namespace": settings.namespace,
            "labels": labels}  # fmt: skip


def _grace_period_s(plan: GangPlan) -> float:
    """At least Kubernetes' usual 30 s, longer where the job asks for a longer save."""
    return max(30.0, plan.timing.grace_s + MARGIN_S)
