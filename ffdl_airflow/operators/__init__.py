"""Tasks: glue between Airflow and the driver."""
