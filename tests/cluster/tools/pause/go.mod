module ffdl-airflow/tests/cluster/pause

go 1.26.0
