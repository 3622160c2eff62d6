"""Use cases: the driver (``advance``) and one module for each stage of a job's life."""
