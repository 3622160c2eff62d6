"""How far a job is to be advanced. A module of its own, because every DAG file imports it."""

from ffdl_airflow.core.text_enum import TextEnum


class Goal(TextEnum):
    """A stage to be reached."""

    SUBMIT = "submit"
    PREFETCH = "prefetch"
    RESERVE = "reserve"
    LAUNCH = "launch"
    REGISTER = "register"
    RELEASE = "release"
