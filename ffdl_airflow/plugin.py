"""What Airflow loads as a plugin. Registers, and has no logic."""

from airflow.plugins_manager import AirflowPlugin


class FfdlPlugin(AirflowPlugin):
    """The package as Airflow lists it under Plugins."""

    name = "ffdl"
