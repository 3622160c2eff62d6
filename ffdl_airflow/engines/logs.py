"""What the agents' processes have printed, found by the names that agents give their files."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ffdl_airflow.agent import protocol
from ffdl_airflow.engines.base import ProcessLog


def process_logs(placements: Mapping[int, Path]) -> list[ProcessLog]:
    """All of these placements in order: by attempt, ranks first.

    :param placements: number → folder that has a folder for each replica
    """
    found = [log for number, folder in placements.items() for log in _logs_in(folder, number)]
    return sorted(
        found, key=lambda log: (log.placement, log.attempt, log.rank is None, log.rank, log.label)
    )


def _logs_in(folder: Path, placement: int) -> Iterator[ProcessLog]:
    """Of ``rank-3.attempt-1.log``, or ``process-0.attempt-1.log`` where it is no rank."""
    for path in folder.glob("*/*-*.attempt-*.log"):
        process, attempt = path.name.removesuffix(".log").split(".")
        kind, _, number = process.partition("-")
        replica, is_rank = path.parent.name, kind == "rank"
        yield ProcessLog(
            placement=placement, attempt=int(attempt.split("-")[1]), replica=replica,
            rank=int(number) if is_rank else None, path=str(path),
            label=number if is_rank else protocol.process_name(replica, int(number)),
        )  # fmt: skip
