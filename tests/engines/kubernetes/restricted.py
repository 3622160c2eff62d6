"""The rules of Kubernetes' *restricted* pod security standard, as a list of what breaks them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
           "projected", "secret"}  # fmt: skip
PROFILES = ("RuntimeDefault", "Localhost")


def violations(pod: dict[str, Any]) -> list[str]:
    spec = pod["spec"]
    return [*_of_the_pod(spec), *(text for one in _containers(spec) for text in _of(one, spec))]


def _containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def _of_the_pod(spec: dict[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for volume in spec.get("volumes", []):
        if not (set(volume) - {"name"}) <= VOLUMES:
            yield f"volume {volume['name']}"
    if spec.get("securityContext", {}).get("sysctls"):
        yield "sysctls"


def _of(container: dict[str, Any], spec: dict[str, Any]) -> Iterator[str]:
    whole, own = spec.get("securityContext", {}), container.get("securityContext", {})
    said = {**whole, **own}
    if said.get("runAsNonRoot") is not True or said.get("runAsUser") == 0:
        yield "may run as root"
    if (said.get("seccompProfile") or {}).get("type") not in PROFILES:
        yield "no seccomp profile"
    if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges"
    capabilities = own.get("capabilities") or {}
    if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add", [])) - {
        "NET_BIND_SERVICE"
    }:
        yield "keeps capabilities"
    if said.get("procMount", "Default") != "Default" or said.get("seLinuxOptions"):
        yield "procMount or SELinux"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "a port of the host"
