"""Another process that sees when pods are bound, so that whoever is measured does less."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from ffdl_airflow.engines.kubernetes.cluster import Cluster, is_bound
from ffdl_airflow.engines.kubernetes.hub import Hub
from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings


@contextmanager
def watched(
    settings: KubernetesSettings, selector: str, count: int
) -> Iterator[Callable[[], float]]:
    """Gives what waits until so many pods are bound, and says when, by the monotonic clock.

    Not a fork: who has forked copies each page of memory that it writes to, half a second long.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_watch, args=(settings, selector, count, theirs))
    process.start()
    theirs.close()  # a witness that has died is an EOFError
    assert ours.recv() is None
    yield ours.recv
    process.join()


def pods_with(settings: KubernetesSettings, selector: str) -> Hub:
    """What such pods there are, of whatever owner."""
    cluster = Cluster(settings)
    hub = Hub(cluster.client, cluster.path("pods"), selector)
    hub.read()
    return hub


def _watch(settings: KubernetesSettings, selector: str, count: int, said: Connection) -> None:
    hub = pods_with(settings, selector)
    said.send(None)
    assert hub.wait(lambda pods: sum(map(is_bound, pods.values())) == count, 120)
    said.send(time.monotonic())
