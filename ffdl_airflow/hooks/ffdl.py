"""From Airflow's section ``[ffdl]`` and a connection of type ``ffdl`` to ready adapters.

Light, because Airflow loads it at every start: adapters are imported when they are asked for.
For: the one place where Airflow tells us where things are. Secrets of the connection go no further
than the adapters. Not for: anything that a command line could not do as well.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, conf
from airflow.sdk.exceptions import AirflowNotFoundException

if TYPE_CHECKING:
    from ffdl_airflow.settings import Settings
    from ffdl_airflow.stages.deps import Deps

DEFAULT_CONN_ID = "ffdl_default"


class FfdlHook(BaseHook):
    """Settings of an installation. The default connection may be missing: the section is enough.

    :param ffdl_conn_id: connection whose extras override the section ``[ffdl]``
    :param engine: engine by name, where it is not the one of the settings
    """

    conn_name_attr = "ffdl_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "ffdl"
    hook_name = "FfDL training"

    def __init__(self, ffdl_conn_id: str = DEFAULT_CONN_ID, *, engine: str | None = None) -> None:
        super().__init__()
        self.ffdl_conn_id = ffdl_conn_id
        self.engine = engine

    def settings(self) -> "Settings":
        """Section, then connection, then the argument."""
        from ffdl_airflow.settings import default_state_dir, from_values

        values = self._with_cluster({**_section(), **self._extras()})
        home = {"AIRFLOW_HOME": os.environ.get("AIRFLOW_HOME") or str(Path.home() / "airflow")}
        settings = from_values(values, state_dir=default_state_dir(home))
        return replace(settings, engine=self.engine) if self.engine else settings

    def deps(self, source: Mapping[str, Any]) -> "Deps":
        """Everything that a driver needs; ``source`` says who drives."""
        from ffdl_airflow import services

        return services.deps(self.settings(), source=source)

    def get_conn(self) -> "Deps":
        """The same without a name for the driver."""
        return self.deps({})

    def _with_cluster(self, values: dict[str, str]) -> dict[str, str]:
        """What the connection ``kubernetes_conn_id`` says of the cluster, below what we say."""
        conn_id = values.pop("kubernetes_conn_id", None)
        if conn_id is None or (self.engine or values.get("engine")) != "kubernetes":
            return values
        from ffdl_airflow.core.errors import FieldProblem, SpecError
        from ffdl_airflow.hooks.kubernetes import cluster_settings

        if values.get("kubeconfig"):
            found = f"{conn_id!r} beside kubeconfig"
            raise SpecError([FieldProblem("kubernetes_conn_id", found, "one of them")],
                            source="[ffdl]")  # fmt: skip
        return {**cluster_settings(conn_id), **values}

    def _extras(self) -> dict[str, str]:
        from ffdl_airflow.core.errors import UserError

        try:
            connection = self.get_connection(self.ffdl_conn_id)
        except AirflowNotFoundException:
            if self.ffdl_conn_id == DEFAULT_CONN_ID:
                return {}
            raise UserError(
                f"ffdl_conn_id: found {self.ffdl_conn_id!r}, which Airflow does not have; allowed: "
                f"a connection of type ffdl, or none: the section [ffdl] is enough"
            ) from None
        from ffdl_airflow.settings import KEYS

        found = connection.extra_dejson
        values = {key: str(found[key]) for key in KEYS if found.get(key) not in (None, "")}
        return values | ({"installation_key": connection.password} if connection.password else {})


def _section() -> dict[str, str]:
    from ffdl_airflow.settings import KEYS

    found = {key: conf.get("ffdl", key, fallback=None) for key in KEYS}
    return {key: str(value) for key, value in found.items() if value not in (None, "")}
