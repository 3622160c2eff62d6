"""Airflow's settings and connections → our settings."""
