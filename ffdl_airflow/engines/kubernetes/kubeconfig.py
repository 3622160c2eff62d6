"""From a kubeconfig, or from the pod that we run in, to what the client library wants to know.

For: saying in words what is wrong with one. Nothing of its content is ever quoted: it holds
secrets, and the client library's own errors quote it.
"""

import os
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes import config as kube_config
from kubernetes.client import Configuration
from kubernetes.config.dateutil import parse_rfc3339
from kubernetes.config.kube_config import FileOrData, KubeConfigLoader, KubeConfigMerger

from ffdl_airflow.core.errors import UserError
from ffdl_airflow.engines.kubernetes import login_plugin
from ffdl_airflow.engines.kubernetes.settings import Credentials

Document = dict[str, Any]

_PARTS = {"clusters": "cluster", "contexts": "context", "users": "user"}
_LONGEST = 255  # of what is taken for a path and named
_NEXT = "name a kubeconfig in [ffdl] kubeconfig or in the connection"


class _Unusable(Exception):
    """Why a kubeconfig cannot be used, in words that quote nothing."""


def configuration(credentials: Credentials) -> Configuration:
    """Raises UserError, or InfrastructureError where a credentials plugin gives none."""
    found = Configuration()
    if credentials.kubeconfig is None:
        _load_of_the_pod(found)
    else:
        _load(credentials.kubeconfig, credentials.context, found)
    found.connection_pool_maxsize = 160  # kept: a gang's requests at once, a long-poll for each job
    return found


def _load_of_the_pod(found: Configuration) -> None:
    try:
        kube_config.load_incluster_config(client_configuration=found)
    except (kube_config.ConfigException, OSError, ValueError) as error:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            raise UserError(
                f"[ffdl] kubeconfig: found nothing, and the pod's service account cannot be used: "
                f"{error}", next_step=_NEXT,
            ) from error  # fmt: skip
        raise UserError(
            "[ffdl] kubeconfig: found nothing, and this is no pod; allowed: a kubeconfig",
            next_step="set kubeconfig, in [ffdl] or in the connection",
        ) from error


def _load(source: str, context: str | None, found: Configuration) -> None:
    is_content = "\n" in source or source.lstrip().startswith("{")
    path = "" if is_content else str(Path(source).expanduser())
    try:
        documents = _read(path) if path else [_document(source)]
        _check(documents, context)
        _Loader(
            KubeConfigMerger(path).config if path else documents[0], active_context=context,
            config_base_path=None,
        ).load_and_set(found)  # fmt: skip
        _check_certificates(found)
    except _Unusable as error:
        what = path if path and len(path) <= _LONGEST else "its content"
        raise UserError(
            f"[ffdl] kubeconfig: found {what}, {error}; allowed: a kubeconfig", next_step=_NEXT
        ) from None


def _read(paths: str) -> list[Document]:
    """Those of the files that are there, as kubectl has it; of one that is not, the error."""
    each = [path for path in paths.split(os.pathsep) if path]
    there = [path for path in each if os.path.lexists(path)]
    found = []
    for path in there or each:
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "no path"
            raise _Unusable(f"which cannot be read: {why}") from None
        found.append(_document(data))
    return found


def _document(text: str | bytes) -> Document:
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _Unusable("which is no YAML or JSON mapping")
    return found


def _check(documents: Sequence[Document], context: str | None) -> None:
    """The chain from the context to its cluster and user."""
    clusters, contexts, users = (_named(documents, part) for part in _PARTS)
    named = [one["current-context"] for one in documents if one.get("current-context")]
    wanted = context or (named[-1] if named else None)
    if wanted is None:
        raise _Unusable("which names no current-context")
    which = f"context {context!r}" if context else "current-context"
    if wanted not in contexts:
        raise _Unusable(f"whose {which} is not among its contexts")
    chosen = contexts[wanted]
    if chosen.get("cluster") not in clusters:
        raise _Unusable(f"whose {which} names a cluster that is not among its clusters")
    if chosen.get("user") and chosen["user"] not in users:
        raise _Unusable(f"whose {which} names a user that is not among its users")
    if not _is_url(clusters[chosen["cluster"]].get("server")):
        raise _Unusable("whose cluster has a server that is no https:// or http:// URL")


def _named(documents: Sequence[Document], part: str) -> dict[str, Document]:
    """Name → content of the contexts, clusters or users; the first one of a name counts."""
    found: dict[str, Document] = {}
    for document in documents:
        entries = document.get(part) or []
        if not isinstance(entries, list):
            raise _Unusable(f"whose {part} are no list")
        for entry in entries:
            content = entry.get(_PARTS[part]) if isinstance(entry, dict) else None
            if not isinstance(content, dict) or not isinstance(entry.get("name"), str):
                raise _Unusable(f"which has an entry in {part} without name or {_PARTS[part]}")
            found.setdefault(entry["name"], content)
    return found


def _is_url(text: Any) -> bool:
    try:
        parts = urlsplit(text if isinstance(text, str) else "")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _check_certificates(found: Configuration) -> None:
    """Said here, since a connection's error would not tell whose certificate it means."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if found.ssl_ca_cert:
            tls.load_verify_locations(found.ssl_ca_cert)
        if found.cert_file:
            tls.load_cert_chain(found.cert_file, found.key_file, password="")
    except (OSError, ValueError):  # an SSLError is an OSError
        raise _Unusable("whose certificates or key cannot be used") from None


class _Loader(KubeConfigLoader):  # type: ignore[misc] # the client library ships no types
    """The library's, with our own errors and our own way to run a plugin."""

    def load_and_set(self, client_configuration: Configuration) -> None:
        try:
            super().load_and_set(client_configuration)
        except OSError as error:
            raise _Unusable(f"which names a file that cannot be read: {error.strerror}") from None
        except kube_config.ConfigException as error:
            missing = "which names a file that does not exist"
            is_missing = str(error).startswith("File does not exist")
            raise _Unusable(missing if is_missing else "which is no valid one") from None
        except ValueError:
            raise _Unusable("which holds data that are no base64, or no text") from None
        except (TypeError, LookupError, AttributeError):
            raise _Unusable("which is no valid one") from None

    def _load_from_exec_plugin(self) -> bool | None:
        """Called for a user without a token; again when the token that it gave is about to end."""
        if "exec" not in self._user:
            return None
        folder = self._get_base_path(self._cluster.path)
        told = login_plugin.credentials(
            self._user.value["exec"], folder=folder, cluster=self._cluster.value
        )
        if told.get("token"):
            self.token = f"Bearer {told['token']}"
        else:
            self.cert_file, self.key_file = (
                FileOrData(told, None, data_key_name=key, base64_file_content=False).as_file()
                for key in ("clientCertificateData", "clientKeyData")
            )
        with suppress(ValueError, TypeError, AttributeError):  # then a refusal tells of its end
            self.expiry = parse_rfc3339(told.get("expirationTimestamp"))
        return True
