"""Alembic scripts of the ledger, with a version table of its own beside Airflow's."""
