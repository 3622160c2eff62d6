"""The command of a kubeconfig that gives credentials (``exec``): run once, within a time limit.

For: its answer, and an error that names it and quotes nothing of what it has said, which may hold
secrets. The client library's own way waits for ever, logs what the command says, and goes on
without credentials. Not for: commands that ask a person; there is no terminal for them.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from ffdl_airflow.core.errors import InfrastructureError

Document = dict[str, Any]

LIMIT_S = 60.0
"""Longest time that a plugin may take. Chosen: some speak with a cloud first."""


def credentials(spec: Any, *, folder: str, cluster: Mapping[str, Any]) -> Document:
    """``status`` of the plugin's answer: with a token, or a client certificate and its key.

    :param spec: ``exec`` of a kubeconfig's user
    :param folder: that of the kubeconfig, where the command is run; empty: here
    :param cluster: the kubeconfig's, of which a plugin is told that wants to know
    """
    command = str(spec.get("command") or "") if isinstance(spec, dict) else ""
    if not command:
        raise _error("without a command", "failed")
    try:
        answer = json.loads(_output(spec, command, folder=folder, cluster=cluster))
        found = answer["status"]
        usable = _is_text(found, "token") or (
            _is_text(found, "clientCertificateData") and _is_text(found, "clientKeyData")
        )
    except subprocess.TimeoutExpired:
        raise _error(command, f"did not answer within {LIMIT_S:g} s") from None
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        subprocess.SubprocessError,
    ):
        raise _error(command, "failed") from None
    if not usable:
        raise _error(command, "failed")
    return dict(found)


def _output(spec: Document, command: str, *, folder: str, cluster: Mapping[str, Any]) -> bytes:
    words = [command, *map(str, spec.get("args") or ())]
    extra = {str(one["name"]): str(one["value"]) for one in spec.get("env") or ()}
    asked: Document = {"interactive": False}
    if spec.get("provideClusterInfo"):
        asked["cluster"] = _told(cluster)
    info = {"apiVersion": spec.get("apiVersion"), "kind": "ExecCredential", "spec": asked}
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        cwd=folder or None, env=os.environ | extra | {"KUBERNETES_EXEC_INFO": json.dumps(info)},
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except BaseException:  # also an interrupt, which a session of its own does not hear
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode != 0:
        raise subprocess.SubprocessError
    return output


def _told(cluster: Mapping[str, Any]) -> Document:
    """The cluster, with what it has for its plugin as ``config``."""
    found = dict(cluster)
    for one in found.get("extensions") or ():
        if one["name"] == "client.authentication.k8s.io/exec":
            found["config"] = one["extension"]
    return found


def _is_text(found: Mapping[str, Any], key: str) -> bool:
    value = found.get(key)
    return isinstance(value, str) and bool(value)


def _error(command: str, what: str) -> InfrastructureError:
    return InfrastructureError(
        f"kubeconfig: the credentials plugin {command} {what}",
        next_step="run it in a shell: it has to answer without a terminal",
    )
