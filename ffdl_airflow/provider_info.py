"""What Airflow reads when it looks for providers: connection type, settings, hook.

Static data only: Airflow calls this at every start of every component, so nothing is imported,
read or computed here. The meaning of the settings lives in `settings.py`; the words here are what
``airflow config list`` and the connection form show.
"""

from __future__ import annotations

from typing import Any

_ADDED = "0.1.0"
_ENGINE = (
    "Where gangs run: local, kubernetes, or package.module:function of an engine from outside."
)


def _option(kind: str, default: str | None, text: str, *, example: str | None = None) -> Any:
    return {
        "description": text,
        "version_added": _ADDED,
        "type": kind,
        "example": example,
        "default": default,
    }


_OPTIONS: dict[str, Any] = {
    "ledger_url": _option(
        "string",
        None,
        "SQLAlchemy URL of the ledger, which records all that happened to every job. "
        "Default: a SQLite file in state_dir (one host only; more hosts need PostgreSQL).",
        example="postgresql+psycopg://ffdl@db.internal/ffdl",
    )
    | {"sensitive": True},
    "state_dir": _option(
        "string",
        None,
        "Folder for placements, locks and logs; local disk only. Default: $AIRFLOW_HOME/ffdl.",
        example="/var/lib/ffdl",
    ),
    "cache_dir": _option(
        "string",
        None,
        "Folder for fetched, verified copies of data sets. Default: cache in state_dir.",
        example="/mnt/nvme/ffdl-cache",
    ),
    "checkpoint_root": _option(
        "string",
        None,
        "Folder under which each job has its checkpoints, seen by all replicas. "
        "Default: checkpoints in state_dir.",
        example="/mnt/shared/checkpoints",
    ),
    "model_root": _option(
        "string",
        None,
        "Folder of the directory registry. Default: models in state_dir.",
        example="/mnt/shared/models",
    ),
    "engine": _option("string", "local", _ENGINE),
    "slots": _option(
        "integer",
        None,
        "Slots of the local engine. Default: the GPUs found, else the cores.",
        example="4",
    ),
    "gpus": _option(
        "integer",
        None,
        "GPUs that the local engine may use, 0 for none. Default: those of the host.",
        example="8",
    ),
    "heartbeat_s": _option("float", "2", "Seconds between two reports of a replica."),
    "silent_s": _option("float", "8", "Seconds without a report after which a replica is lost."),
    "hold_s": _option("float", "600", "Seconds that a placed gang waits for its launch."),
    "placement_s": _option("float", "300", "Seconds in which all replicas must be placed."),
    "grace_s": _option("float", "30", "Seconds to save a checkpoint before a stop."),
    "installation_key": _option(
        "string",
        None,
        "Secret from which the tokens of placements are derived. Default: made once in "
        "state_dir (mode 0600); with a ledger on a server it must be set, here or as the "
        "connection's password.",
    )
    | {"sensitive": True},
    "kubeconfig": _option(
        "string",
        None,
        "Cluster of the kubernetes engine: path of a kubeconfig, or its content. "
        "Default: the service account of the pod that Airflow runs in.",
        example="/etc/ffdl/kubeconfig",
    )
    | {"sensitive": True},
    "kube_context": _option("string", None, "Context of the kubeconfig. Default: its own."),
    "kubernetes_conn_id": _option(
        "string",
        None,
        "Cluster of the kubernetes engine by an Airflow connection of type kubernetes, instead of "
        "kubeconfig.",
        example="kubernetes_default",
    ),
    "namespace": _option(
        "string",
        None,
        "Kubernetes: where the pods run. Default: that of kubernetes_conn_id, else default.",
        example="ffdl-training",
    ),
    "agent_image": _option(
        "string",
        None,
        "Kubernetes: image that brings the agent into the pods, see docker/agent/.",
        example="registry.internal/ffdl-agent:0.1.0",
    ),
    "mover_image": _option(
        "string",
        None,
        "Kubernetes: image with this package, for Jobs that copy data and models on the volumes; "
        "without it the driver's host copies.",
        example="registry.internal/ffdl-airflow:0.1.0",
    ),
    "pod_python": _option("string", "python3", "Kubernetes: Python of the jobs' images."),
    "volumes": _option(
        "string",
        None,
        "Kubernetes: claims that all pods mount, separated by commas.",
        example="ffdl-data:/mnt/data:ro,ffdl-shared:/mnt/shared",
    ),
    "service_account": _option("string", None, "Kubernetes: account of the pods, without rights."),
    "run_as_user": _option("string", "1000", "Kubernetes: user id in the pods, or image."),
    "fs_group": _option("string", "1000", "Kubernetes: group id of the volumes, or image."),
    "tolerations": _option(
        "string",
        None,
        "Kubernetes: taints of nodes kept for training, separated by commas.",
        example="ffdl.airflow/training=true:NoSchedule",
    ),
    "turnstile_namespace": _option(
        "string",
        None,
        "Kubernetes: where the turnstile's Lease lies; one for installations in several namespaces "
        "that share nodes. Default: namespace.",
        example="ffdl-training",
    ),
}
"""The section [ffdl]. A default of None is computed at run time."""


def _field(label: str, text: str, **schema: Any) -> dict[str, Any]:
    return {"label": label, "description": text, "schema": {"type": ["string", "null"], **schema}}


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "ffdl",
        "hook-class-name": "ffdl_airflow.hooks.ffdl.FfdlHook",
        "hook-name": "FfDL training",
        "ui-field-behaviour": {
            "hidden-fields": ["host", "port", "login", "schema"],
            "relabeling": {"password": "Installation key"},
            "placeholders": {"password": "required with a ledger other than SQLite"},
        },
        "conn-fields": {
            "engine": _field("Engine", _ENGINE),
            "ledger_url": _field("Ledger URL", "Overrides [ffdl] ledger_url.", format="password"),
            "state_dir": _field("State folder", "Overrides [ffdl] state_dir."),
            "cache_dir": _field("Cache folder", "Overrides [ffdl] cache_dir."),
            "checkpoint_root": _field("Checkpoint folder", "Overrides [ffdl] checkpoint_root."),
            "model_root": _field("Model folder", "Overrides [ffdl] model_root."),
            "kubernetes_conn_id": _field(
                "Kubernetes connection", "Overrides [ffdl] kubernetes_conn_id."
            ),
            "slots": _field("Slots", "Overrides [ffdl] slots.", type=["integer", "null"]),
            "hold_s": _field("Hold", "Overrides [ffdl] hold_s.", type=["number", "null"]),
        },
    }


def get_provider_info() -> dict[str, Any]:
    """Return what the entry point ``apache_airflow_provider`` promises."""
    return {
        "package-name": "ffdl-airflow",
        "name": "FfDL training",
        "description": "Distributed training jobs: prefetch, reserve, launch, register.",
        "versions": [_ADDED],
        "integrations": [
            {
                "integration-name": "FfDL training",
                "external-doc-url": "https://github.com/IBM/FfDL",
                "tags": ["software"],
            }
        ],
        "hooks": [
            {"integration-name": "FfDL training", "python-modules": ["ffdl_airflow.hooks.ffdl"]}
        ],
        "connection-types": [_connection_type()],
        "extra-links": ["ffdl_airflow.links.job.TrainingJobLink"],
        "config": {
            "ffdl": {
                "description": "Training jobs: where they run, and where their state lies.",
                "options": _OPTIONS,
            }
        },
    }
