"""Where gangs run. Each engine implements the port in :mod:`ffdl_airflow.engines.base`."""
