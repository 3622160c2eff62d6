"""Decisions: pure functions on frozen data; no I/O, no clock, no Airflow."""
