"""Registered models as Airflow assets: a DAG can wait for the next version of a model.

::

    with DAG("evaluate", schedule=[model_asset("digits")]): ...

The event's ``extra`` has name, version, SHA-256, path and metrics of the version.
"""

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias

MODELS = AssetAlias("ffdl_models")
"""Outlet of a task whose model is not known before it runs. Two tasks that announce the same new
model through it at the same moment collide in Airflow 3.3.2, and one of them fails after its work
(seen); so a model that is known when the DAG is parsed is an outlet by its own name."""


def outlet_of(job: Any) -> Asset | AssetAlias:
    """The asset of the job's model where its name can be read already, else the alias."""
    document = job.document() if hasattr(job, "document") else job
    spec = document.get("spec") if isinstance(document, Mapping) else None
    model = spec.get("model") if isinstance(spec, Mapping) else None
    name = model.get("name") if isinstance(model, Mapping) else None
    return model_asset(name) if isinstance(name, str) and "{" not in name else MODELS


def model_asset(name: str) -> Asset:
    """The asset of a model by its name in the registry."""
    return Asset(name=f"ffdl_model_{name}", uri=f"ffdl://models/{name}")
