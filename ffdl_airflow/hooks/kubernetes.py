"""A connection of type ``kubernetes`` → our settings of a cluster.

The fields are those of ``apache-airflow-providers-cncf-kubernetes``, whose hook is not used: it
makes a client, and ours has to keep credentials and read them anew. Not for: speaking to a cluster.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import yaml

from ffdl_airflow.core.errors import FieldProblem, SpecError
from ffdl_airflow.core.job import DNS_LABEL

DEFAULT_CONN_ID = "kubernetes_default"
"""May be missing, as it may for that provider: then the defaults of a cluster hold."""
_PREFIX = "extra__kubernetes__"
"""Of the fields' names in connections that Airflow before 2.3 has written."""
_SOURCES = ("in_cluster", "kube_config_path", "kube_config")
_TRUTH: Mapping[object, bool] = {
    True: True, False: False, "true": True, "false": False, "": False, None: False,
}  # fmt: skip


def cluster_settings(conn_id: str) -> dict[str, str]:
    """``kubeconfig``, ``kube_context`` and ``namespace``, as far as the connection says them.

    Raises SpecError with every field that is wrong; no value of a field that may be secret is told.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        if conn_id == DEFAULT_CONN_ID:
            return read({}, os.environ, conn_id=conn_id)
        found = f"{conn_id!r}, which Airflow does not have"
        raise _wrong("[ffdl]", "kubernetes_conn_id", found) from None
    if connection.conn_type != "kubernetes":
        found = f"{conn_id!r}, of type {connection.conn_type}"
        raise _wrong("[ffdl]", "kubernetes_conn_id", found)
    return read(connection.extra_dejson, os.environ, conn_id=conn_id)


def read(extra: Mapping[str, Any], environ: Mapping[str, str], *, conn_id: str) -> dict[str, str]:
    """The settings that the connection's extra fields mean; ``environ`` tells where we run."""
    fields = {key.removeprefix(_PREFIX): value for key, value in extra.items()}
    problems = [
        FieldProblem(f"extra.{key}", repr(fields.get(key)), "true or false")
        for key in ("in_cluster", "disable_verify_ssl") if _truth(fields.get(key)) is None
    ]  # fmt: skip
    problems += [
        FieldProblem(f"extra.{key}", type(fields[key]).__name__, "text")
        for key in ("kube_config_path", "cluster_context", "namespace")
        if not isinstance(fields.get(key) or "", str)
    ]
    namespace = fields.get("namespace")
    if isinstance(namespace, str) and namespace and not re.fullmatch(DNS_LABEL, namespace):
        problems.append(FieldProblem("extra.namespace", repr(namespace), "a DNS label"))
    if _truth(fields.get("disable_verify_ssl")):
        allowed = "false; a cluster's entry in the kubeconfig may say insecure-skip-tls-verify"
        problems.append(FieldProblem("extra.disable_verify_ssl", "true", allowed))
    content = _content(fields.get("kube_config"))
    if content is None:
        allowed = "a kubeconfig as JSON: a mapping with clusters, users and contexts"
        problems.append(FieldProblem("extra.kube_config", "something else", allowed))
    said = [key for key in _SOURCES if fields.get(key) and _truth(fields[key]) is not False]
    if len(said) > 1:
        problems.append(FieldProblem("extra", " and ".join(said), "one of them"))
    if problems:
        raise SpecError(problems, source=f"connection {conn_id}")
    source = content or fields.get("kube_config_path")
    if not said and "KUBERNETES_SERVICE_HOST" not in environ:
        source = environ.get("KUBECONFIG") or "~/.kube/config"
    values = {"kubeconfig": source, "kube_context": fields.get("cluster_context"),
              "namespace": namespace}  # fmt: skip
    return {key: str(value) for key, value in values.items() if value}


def _truth(value: object) -> bool | None:
    """None where it is neither."""
    known = value.lower() if isinstance(value, str) else value
    return _TRUTH.get(known) if isinstance(known, str | bool | None) else None


def _content(found: object) -> str | None:
    """A kubeconfig's content as our client knows it, empty where there is none; None: it is none.

    What a parser says of it is not told: it quotes the text.
    """
    if not found:
        return ""
    try:
        document = yaml.safe_load(found) if isinstance(found, str) else found
    except yaml.YAMLError:
        return None
    return json.dumps(document, indent=1, default=str) if isinstance(document, Mapping) else None


def _wrong(source: str, path: str, found: str) -> SpecError:
    allowed = "a connection of type kubernetes, or none: kubeconfig says which cluster"
    return SpecError([FieldProblem(path, found, allowed)], source=source)
