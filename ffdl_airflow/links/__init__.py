"""Links that the task's page in Airflow shows."""
