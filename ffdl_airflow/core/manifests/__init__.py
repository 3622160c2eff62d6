"""One reader a dialect; every manifest becomes a :class:`~ffdl_airflow.core.job.TrainingJob`."""
