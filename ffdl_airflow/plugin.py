"""What Airflow loads as a plugin. Registers, and has no logic."""

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from ffdl_airflow.listeners import stop


class FfdlPlugin(AirflowPlugin):
    """The package as Airflow lists it under Plugins."""

    name = "ffdl"
    listeners = [stop]  # noqa: RUF012 - Airflow's own attribute
    external_views = [  # noqa: RUF012 - Airflow's own attribute
        {
            "name": "Training",
            "href": "ffdl/jobs",
            "destination": "nav",
            "url_route": "training",
        }
    ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The web app. Only the API server asks for it, and so only there it is imported."""
        from ffdl_airflow.web.app import create_app

        return [{"app": create_app(), "url_prefix": "/ffdl", "name": "FfDL training"}]
