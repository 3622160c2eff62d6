"""What Airflow reads when it looks for providers: connection type, settings, hook.

Static data only: Airflow calls this at every start of every component, so nothing is imported,
read or computed here. The meaning of the settings lives in `settings.py`; the words here are what
``airflow config list`` and the connection form show.
"""

from __future__ import annotations

from typing import Any

_ADDED = "0.1.0"


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
    "engine": _option("string", "local", "Where gangs run: local or kubernetes."),
    "slots": _option(
        "integer",
        None,
        "Slots of the local engine. Default: the GPUs found, else the cores.",
        example="4",
    ),
    "heartbeat_s": _option("float", "2", "Seconds between two reports of a replica."),
    "silent_s": _option("float", "8", "Seconds without a report after which a replica is lost."),
    "hold_s": _option("float", "600", "Seconds that a placed gang waits for its launch."),
    "placement_s": _option("float", "300", "Seconds in which all replicas must be placed."),
    "grace_s": _option("float", "30", "Seconds to save a checkpoint before a stop."),
    "log_level": _option("string", "INFO", "DEBUG, INFO, WARNING or ERROR."),
    "failure_rules": _option(
        "string",
        None,
        "YAML file with rules for failures of your own, asked before the built-in ones.",
        example="/etc/ffdl/failures.yaml",
    ),
    "installation_key": _option(
        "string",
        None,
        "Secret from which the tokens of placements are derived. Default: made once in "
        "state_dir (mode 0600); with a ledger on a server it must be set, here or as the "
        "connection's password.",
    )
    | {"sensitive": True},
    "images": _option(
        "string",
        None,
        "JSON map from framework/version to container image.",
        example='{"pytorch/2.9": "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"}',
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
            "engine": _field(
                "Engine", "Where gangs run.", enum=["local", "kubernetes", None], default=None
            ),
            "ledger_url": _field("Ledger URL", "Overrides [ffdl] ledger_url.", format="password"),
            "state_dir": _field("State folder", "Overrides [ffdl] state_dir."),
            "cache_dir": _field("Cache folder", "Overrides [ffdl] cache_dir."),
            "checkpoint_root": _field("Checkpoint folder", "Overrides [ffdl] checkpoint_root."),
            "model_root": _field("Model folder", "Overrides [ffdl] model_root."),
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
        "config": {
            "ffdl": {
                "description": "Training jobs: where they run, and where their state lies.",
                "options": _OPTIONS,
            }
        },
    }
