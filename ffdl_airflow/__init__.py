"""Distributed training jobs as Airflow DAGs.

For: the public names, in one place. Each is imported when it is first used, so that ``import
ffdl_airflow`` costs a millisecond in every scheduler loop, DAG parse and command line call.
Not for: anything that runs at import.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES: dict[str, str] = {
    "FfdlError": "ffdl_airflow.core.errors",
    "FfdlHook": "ffdl_airflow.hooks.ffdl",
    "FfdlRetryPolicy": "ffdl_airflow.operators.retry_policy",
    "ReapOperator": "ffdl_airflow.operators.reap",
    "TrainingJob": "ffdl_airflow.core.job",
    "TrainingJobGroup": "ffdl_airflow.operators.group",
    "TrainingJobOperator": "ffdl_airflow.operators.training_job",
    "TrainingJobSensor": "ffdl_airflow.sensors.job",
    "UtilizationWatchdogSensor": "ffdl_airflow.sensors.job",
    "model_asset": "ffdl_airflow.operators.assets",
    "run_deadline": "ffdl_airflow.operators.deadline",
}
"""Public name → module that defines it. `tests/architecture` resolves each."""

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 - all keys are strings


def __getattr__(name: str) -> Any:
    """Import the module behind a public name (PEP 562) and keep the object."""
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'ffdl_airflow' has no attribute '{name}'; it has {', '.join(__all__)}"
        raise AttributeError(message)
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
