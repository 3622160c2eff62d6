"""What Airflow tells about state changes."""
