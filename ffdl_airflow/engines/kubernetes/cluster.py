"""The objects of our installation in one namespace: reading from the hub, making, ending.

For: everything that is said to the API server about a placement, with errors for people. Not for:
deciding; that is in ``placing.py`` and ``ending.py``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from ffdl_airflow.core.errors import InfrastructureError
from ffdl_airflow.engines.kubernetes import names
from ffdl_airflow.engines.kubernetes.client import ApiError, AwayError, KubeClient
from ffdl_airflow.engines.kubernetes.hub import Hub
from ffdl_airflow.engines.kubernetes.needs import labels_of
from ffdl_airflow.engines.kubernetes.refusals import explain
from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings

Document = dict[str, Any]
_THREADS = 128
"""Requests of one gang at a time; Kubernetes' own Job controller sends up to 500. Chosen: a gang of
256 has its nodes a fifth sooner than with 16. The client's own rate limit is behind it."""
ENDED_PHASES = ("Succeeded", "Failed")
_GANG_LABELS = (names.INSTALLATION, names.JOB, names.PLACEMENT)


class Cluster:
    """One namespace of one cluster, as one installation sees it."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self.settings = settings
        self.installation = names.installation_id(settings.installation_key)
        self.client = KubeClient(settings.credentials)
        self._pods = Hub(self.client, self.path("pods"), names.INSTALLATION, group=_gang_of)
        self._anchors = Hub(self.client, self.path("configmaps"), f"{names.ANCHOR}=true")

    def path(self, kind: str, name: str | None = None) -> str:
        """Path of a collection of the namespace, or of one object in it."""
        api = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        found = f"{api}/namespaces/{self.settings.namespace}/{kind}"
        return found if name is None else f"{found}/{name}"

    def anchors(self) -> Mapping[str, Document]:
        """Anchors and tombstones of the namespace's placements by name, also of other owners."""
        with self.saying("read config maps"):
            return self._anchors.read()

    def anchor(self, placement_id: str) -> Document | None:
        """What stands for the placement; None where nothing does."""
        found = self.anchor_named(names.gang_name(placement_id))
        if found is not None and not self.is_ours(found):
            raise _foreign("config map", found)
        return found

    def anchor_named(self, name: str) -> Document | None:
        """An anchor or a tombstone, whoever's it is; None where there is none."""
        with self.saying("read config maps"):
            return self._anchors.get(name)

    def is_ours(self, found: Mapping[str, Any]) -> bool:
        """Whether an object belongs to our installation."""
        return bool(labels_of(found).get(names.INSTALLATION) == self.installation)

    def pods(self, placement_id: str) -> dict[str, Document]:
        """Replica → its pod, of those that are there."""
        return self._pods_with(self._gang(placement_id))

    def pods_of(self, anchor: Mapping[str, Any]) -> dict[str, Document]:
        """The same for whoever's anchor it is."""
        return self._pods_with(_gang_of(anchor))

    def movers(self, job: str) -> dict[str, Document]:
        """Pods of a Job of ours, by name."""
        with self.saying("read pods"):
            return dict(self._pods.group(job))

    def job(self, name: str) -> Document | None:
        """A Job of ours; None where there is none."""
        with self.saying("read jobs"):
            try:
                return self.client.get(self.path("jobs", name))
            except ApiError as error:
                if error.not_found:
                    return None
                raise

    def complaint_of(self, job: Mapping[str, Any]) -> str:
        """Why a Job gets no pod, by its newest warning; nothing where events may not be read."""
        found = self._warnings(f"involvedObject.uid={job['metadata']['uid']}")
        return f"waiting: {found[-1].get('message')}" if found else ""

    def _warnings(self, about: str) -> list[Document]:
        """Events of a kind of object, or of one; none where we may not read them."""
        with self.saying("read events"):
            try:
                found = self.client.list(self.path("events"), fieldSelector=f"{about},type=Warning")
            except ApiError as error:
                if error.forbidden:
                    return []
                raise
        return list(found["items"])

    def make_job(self, body: Mapping[str, Any]) -> Document:
        """Create a Job, or read the one that has its name."""
        with self.saying("create jobs"):
            try:
                return self.client.create(self.path("jobs"), body)
            except ApiError as error:
                if not error.conflict:
                    raise
                return self.client.get(self.path("jobs", body["metadata"]["name"]))

    def remove_job(self, name: str) -> None:
        """Delete a Job of ours by its name, and its pods with it; one that is gone is no error."""
        found = self.job(name)
        if found is not None and self.is_ours(found):
            self.remove("jobs", found)

    def departed(self, placement_id: str, replica: str) -> Document | None:
        """The last state of a pod that is gone, where we have seen it go."""
        return self._pods.departed(names.pod_name(placement_id, replica))

    def confirmed(self, placement_id: str, replica: str) -> Document | None:
        """A replica's pod, read past the watch: who has not heard of it may be late."""
        with self.saying("read pods"):
            try:
                found = self._named("pods", names.pod_name(placement_id, replica))
            except ApiError as error:
                if not error.not_found:
                    raise
                return None
        self._pods.put(found)
        return found

    def events_of(self, pods: Mapping[str, Document]) -> list[Document]:
        """Events about these pods, newest last; none where we may not read them."""
        wanted = {pod["metadata"]["uid"] for pod in pods.values()}
        found = self._warnings("involvedObject.kind=Pod")
        return [event for event in found if event["involvedObject"].get("uid") in wanted]

    def _pods_with(self, gang: str) -> dict[str, Document]:
        with self.saying("read pods"):
            found = self._pods.group(gang)
        return {str(labels_of(pod).get(names.REPLICA)): pod for pod in found.values()}

    def _gang(self, placement_id: str) -> str:
        job, number = placement_id.rsplit("/", 1)
        labels = {names.INSTALLATION: self.installation, names.JOB: names.label_value(job),
                  names.PLACEMENT: number}  # fmt: skip
        return _gang_of({"metadata": {"labels": labels}})

    def wait_for_pods(self, count: int, placement_id: str, *, wait_s: float) -> None:
        """Until so many pods of the placement are bound, or the time is over."""
        self._pods.wait(lambda pods: sum(map(is_bound, pods.values())) >= count, wait_s,
                        key=self._gang(placement_id))  # fmt: skip

    def make(self, kind: str, body: Mapping[str, Any]) -> Document:
        """Create an object, or take the one of that name where it is ours."""
        name = body["metadata"]["name"]
        with self.saying(f"create {kind}"):
            try:
                found = self.client.create(self.path(kind), body, one_of_many=kind == "pods")
            except ApiError as error:
                if not error.conflict:
                    raise
                found = self._adopt(kind, name, body)
        if kind == "configmaps":
            self._anchors.put(found)
        return found

    def annotate(self, anchor: Mapping[str, Any], changes: Mapping[str, str]) -> Document | None:
        """Write annotations of an anchor, if nobody has changed it meanwhile; None where so."""
        metadata = anchor["metadata"]
        body = {"metadata": {"annotations": dict(changes), "uid": metadata["uid"],
                             "resourceVersion": metadata["resourceVersion"]}}  # fmt: skip
        with self.saying("update config maps"):
            try:
                found = self.client.patch(self.path("configmaps", metadata["name"]), body)
            except ApiError as error:
                if error.conflict or error.not_found:
                    self.refresh(metadata["name"])
                    return None
                raise
        self._anchors.put(found)
        return found

    def refresh(self, name: str) -> Document | None:
        """Read an anchor past the watch; None where there is none."""
        with self.saying("read config maps"):
            try:
                found = self.client.get(self.path("configmaps", name))
            except ApiError as error:
                if not error.not_found:
                    raise
                known = self._anchors.get(name)
                if known is not None:
                    self._anchors.forget(known)
                return None
        self._anchors.put(found)
        return found

    def remove(self, kind: str, found: Mapping[str, Any], *, grace_s: int | None = None) -> None:
        """Delete this very object and no other of its name."""
        metadata = found["metadata"]
        with self.saying(f"delete {kind}"):
            path = self.path(kind, metadata["name"])
            self.client.delete(path, uid=metadata["uid"], grace_s=grace_s)

    def remove_pods(self, pods: Mapping[str, Document], *, grace_s: int | None = None) -> None:
        """Delete those that are not on their way out already.

        Of a pod whose containers have all ended, by the kubelet's word, only the object is left.
        """

        def remove(pod: Document) -> None:
            self.remove("pods", pod, grace_s=0 if is_over(pod) else grace_s)

        staying = [p for p in pods.values() if is_over(p) or not is_leaving(p)]
        self.at_once(remove, staying)

    @staticmethod
    def at_once(act: Callable[[Document], object], found: Sequence[Document]) -> None:
        """Some requests at a time; the first error is raised after all of them have been tried."""
        with ThreadPoolExecutor(max_workers=_THREADS) as pool:
            for future in [pool.submit(act, each) for each in found]:
                future.result()

    def open_service(self, name: str) -> bool:
        """Give all replicas their names; False where the round and its service are gone."""
        with self.saying("update services"):
            try:
                change = {"spec": {"selector": {names.REPLICA: None}}}
                self.client.patch(self.path("services", name), change)
            except ApiError as error:
                if not error.not_found:
                    raise
                return False
        return True

    def remove_service(self, name: str) -> None:
        """Delete the service of a round, which owns its pods and its secret."""
        with self.saying("delete services"):
            try:
                found = self.client.get(self.path("services", name))
            except ApiError as error:
                if error.not_found:
                    return
                raise
        if self.is_ours(found):
            self.remove("services", found)

    def remove_secret(self, name: str) -> None:
        """Delete an object that we may not read, by its name, which is ours alone."""
        with self.saying("delete secrets"):
            self.client.delete(self.path("secrets", name))

    @contextmanager
    def saying(self, doing: str, *, namespace: str | None = None) -> Iterator[None]:
        """Errors of the API as errors for people. ``namespace``: where it is not the own."""
        try:
            yield
        except (ApiError, AwayError) as error:
            where = f"{doing} in namespace {namespace or self.settings.namespace}"
            raise explain(error, doing=where, host=self.client.host) from error

    def _adopt(self, kind: str, name: str, body: Mapping[str, Any]) -> Document:
        """The object that has our name already. Secrets are not read: their names carry a hash."""
        if kind == "secrets":
            return dict(body)
        found = self._named(kind, name)
        wanted, has = labels_of(body), labels_of(found)
        if any(wanted.get(key) != has.get(key) for key in _GANG_LABELS):
            raise _foreign(kind, found)
        return found

    def _named(self, kind: str, name: str) -> Document:
        """An object that is there. Pods are only listed, so that nobody has to let us get them."""
        if kind != "pods":
            return self.client.get(self.path(kind, name))
        found = self.client.list(self.path(kind), fieldSelector=f"metadata.name={name}")["items"]
        if not found:
            raise ApiError(404, {"message": f"pod {name} has just gone"}, f"GET pod {name}")
        pod: Document = found[0]
        return pod


def _gang_of(found: Mapping[str, Any]) -> str:
    """The placement of a pod or an anchor, of whatever installation, or a mover's Job.

    No label's value has a /.
    """
    mover = labels_of(found).get(names.MOVER)
    return str(mover) if mover else "/".join(str(labels_of(found).get(key)) for key in _GANG_LABELS)


def _foreign(kind: str, found: Mapping[str, Any]) -> InfrastructureError:
    metadata = found["metadata"]
    return InfrastructureError(
        f"{kind} {metadata['name']} is there already and is not ours",
        evidence=f"its labels: {dict(labels_of(found))}",
        next_step="remove it, or give the installation a namespace of its own",
    )


def stage_of(anchor: Mapping[str, Any]) -> str:
    """``waiting``, ``placing`` or ``placed``; ``ended`` where it is a tombstone or is to be one."""
    if names.ENDED in labels_of(anchor) or names.ENDED in annotations_of(anchor):
        return "ended"
    return str(annotations_of(anchor).get(names.STAGE, "waiting"))


def annotations_of(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Annotations of an object."""
    annotations: Mapping[str, Any] = found["metadata"].get("annotations") or {}
    return annotations


def is_bound(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has a node."""
    return bool(pod["spec"].get("nodeName"))


def is_leaving(pod: Mapping[str, Any]) -> bool:
    """Whether its deletion was asked for."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_over(pod: Mapping[str, Any]) -> bool:
    """Whether none of the pod's containers runs any more."""
    return str(pod["status"].get("phase")) in ENDED_PHASES


def is_running(pod: Mapping[str, Any]) -> bool:
    """Whether the pod's agent has been started."""
    return str(pod["status"].get("phase")) == "Running"
