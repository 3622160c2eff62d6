"""Gangs as pods of a Kubernetes cluster; see :mod:`ffdl_airflow.engines.base` for the port."""
