"""Pages and a small REST API about jobs, inside Airflow's API server. They read, and do nothing."""
