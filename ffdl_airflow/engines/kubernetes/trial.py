"""A gang of one for the doctor: made as every gang is, with a program that only answers.

It shows at once whether images are pulled, volumes mounted, names resolved, and whether the API
server's proxy leads to pods. Whatever comes of it, it is taken back.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ffdl_airflow.core.errors import FfdlError
from ffdl_airflow.core.manifests.ffdl import read_job
from ffdl_airflow.core.plan import GangPlan
from ffdl_airflow.engines.kubernetes import names, render
from ffdl_airflow.engines.kubernetes.client import ApiError, AwayError
from ffdl_airflow.engines.kubernetes.cluster import Cluster, Document, is_over, is_running
from ffdl_airflow.engines.kubernetes.diagnosis import Trial
from ffdl_airflow.engines.kubernetes.pending import why_pending
from ffdl_airflow.engines.kubernetes.podgroups import PodGroups
from ffdl_airflow.engines.kubernetes.preview import sample
from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings
from ffdl_airflow.engines.kubernetes.template import TRAINER

START_S, ANSWER_S, LOOK_S = 120.0, 15.0, 0.5
"""How long the pod may take to start (its images may have to be pulled) and to answer, and how
often it is looked at. Chosen."""
PROGRAM = """
import http.server, json, socket, sys
name, port = sys.argv[1], int(sys.argv[2])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            found = {"addresses": sorted({x[4][0] for x in socket.getaddrinfo(name, None)})}
        except OSError as error:
            found = {"trouble": str(error)}
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("", port), Answer).serve_forever()
"""


def pod(settings: KubernetesSettings, *, priority: str) -> Document:
    """A pod as a gang has it, to be judged only."""
    (found,) = render.pods(_plan(settings, image=settings.agent_image, priority=priority), settings)
    return found


def run(cluster: Cluster, image: str) -> Trial:
    """Make the gang, ask it, take it back."""
    plan = _plan(cluster.settings, image=image)
    host = render.host_of(plan, plan.replicas[0])
    groups: bool | None = None
    try:
        groups = PodGroups(cluster).work()
        with _placed(cluster, plan, host):
            return _asked(cluster, plan, Trial(image=image, host=host, groups=groups))
    except FfdlError as error:
        return Trial(image=image, start=error.cause, groups=groups)


def _plan(settings: KubernetesSettings, *, image: str, priority: str = "offline-batch") -> GangPlan:
    job = read_job({
        "apiVersion": "ffdl.cloud.ibm.com/v1", "kind": "TrainingJob",
        "metadata": {"name": "doctor"},
        "spec": {"training": {"framework": "custom", "command": ["true"], "image": image},
                 "resources": {"cpu": "100m", "memory": "64Mi"}, "priority": priority},
    })  # fmt: skip
    return sample(job, settings, run=secrets.token_hex(8))


@contextmanager
def _placed(cluster: Cluster, plan: GangPlan, host: str) -> Iterator[None]:
    settings, name = cluster.settings, names.gang_name(plan.placement_id)
    made: dict[str, Mapping[str, Any]] = {}
    try:
        owner = made["services"] = cluster.make("services", render.service(plan, settings))
        cluster.make("secrets", render.owned(render.secret(plan, settings), owner))
        (bare,) = render.pods(plan, settings)
        pod = render.owned(bare, owner)
        program = [settings.python, "-c", PROGRAM, host, str(names.AGENT_PORT)]
        pod["spec"]["containers"][0]["command"] = program
        made["pods"] = cluster.make("pods", pod)
        yield
    finally:
        for kind, found in made.items():
            cluster.remove(kind, found)
        if made:
            cluster.remove_secret(name)


def _asked(cluster: Cluster, plan: GangPlan, so_far: Trial) -> Trial:
    """The pod's own answer, through the proxy, and whether a command can be run in it."""
    replica = plan.replicas[0].name
    name = names.pod_name(plan.placement_id, replica)
    started = _until(
        lambda: cluster.confirmed(plan.placement_id, replica),
        lambda made: made is None or is_running(made) or is_over(made), START_S,
    )  # fmt: skip
    if started is None or not is_running(started):
        why = why_pending([started]) if started is not None else None
        return replace(so_far, start=why.reason if why else "the pod has ended or is gone")
    answer = _until(
        lambda: _answer(cluster, name), lambda found: bool(found.get("addresses")), ANSWER_S
    )
    so_far = replace(so_far, command=_command(cluster, name))
    if "refused" in answer:
        return replace(so_far, proxy=answer["refused"])
    if not answer.get("addresses"):
        return replace(so_far, names=answer.get("trouble") or "no address")
    return replace(so_far, addresses=answer["addresses"])


def _answer(cluster: Cluster, name: str) -> Document:
    path = cluster.path("pods", f"{name}:{names.AGENT_PORT}") + "/proxy/"
    try:
        return cluster.client.get(path)
    except (ApiError, AwayError) as error:
        return {"refused": str(error)}


def _command(cluster: Cluster, name: str) -> str | None:
    """What is wrong with commands in the pod, None where they work."""
    words = [cluster.settings.python, "-c", ""]
    try:
        done = cluster.client.execute(
            cluster.path("pods", name), words, container=TRAINER, timeout_s=ANSWER_S
        )
    except (ApiError, AwayError) as error:
        return str(error)
    return done.failed


def _until(ask: Callable[[], Any], enough: Callable[[Any], bool], at_most_s: float) -> Any:
    """The first answer that is enough, else the last one."""
    deadline = time.monotonic() + at_most_s
    while True:
        found = ask()
        if enough(found) or time.monotonic() > deadline:
            return found
        time.sleep(LOOK_S)
