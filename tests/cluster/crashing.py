"""A bed whose process is killed: ``python -m tests.cluster.crashing FOLDER``.

Starts a small bed with one running pod, prints what there is, and waits for the end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.cluster import pods
from tests.cluster.bed import Bed


def main(folder: Path) -> None:
    bed = Bed.start(folder, real_nodes=1)
    namespace = bed.make_namespace("crash")
    pods.create(bed, namespace, pods.manifest("lasting", ["sleep", "1000"]))
    pods.wait_until(bed, namespace, "lasting", pods.ready)
    pids = bed.container_pids(f"{namespace}/lasting", "main")
    print(json.dumps({"container_pids": pids, "server_url": bed.server_url}), flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
