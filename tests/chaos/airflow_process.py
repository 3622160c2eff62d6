"""A process of Airflow that runs one DAG: ``python airflow_process.py DAG_FILE DAG_ID``.

What a scheduler, a worker and a triggerer are together, for tests that kill all of it at once.
AIRFLOW_HOME and the rest come from the environment. Prints ``ready`` when the DAG starts.
"""

import os
import sys
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag
from airflow.utils.db import initdb


def main(file: str, dag_id: str) -> int:
    if not (Path(os.environ["AIRFLOW_HOME"]) / "airflow.db").exists():
        initdb()
    bag = DagBag(dag_folder=file, bundle_path=Path(file).parent, bundle_name="dags-folder")
    if bag.import_errors:
        raise SystemExit(str(bag.import_errors))
    print("ready", flush=True)
    run = bag.dags[dag_id].test()
    print(run.state, flush=True)
    return 0 if str(run.state) == "success" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
