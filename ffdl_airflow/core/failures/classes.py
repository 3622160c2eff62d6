"""The failure classes and what follows from each: one row a class (CONTRACT, section 7).

For: class → does it cost, does it restart, what a person should do. A test fails if a class has no
row. Not for: finding the class; that is ``rules.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ffdl_airflow.core.text_enum import TextEnum


class FailureClass(TextEnum):
    """Why an attempt failed."""

    USER_ERROR = "USER_ERROR"
    CONFIG = "CONFIG"
    IMAGE = "IMAGE"
    DATA_MISSING = "DATA_MISSING"
    STORAGE_AUTH = "STORAGE_AUTH"
    AUTH = "AUTH"
    LICENSE = "LICENSE"
    COMM_MISUSE = "COMM_MISUSE"
    NUMERIC = "NUMERIC"
    HOST_OOM = "HOST_OOM"
    GPU_OOM = "GPU_OOM"
    SHM = "SHM"
    DISK_FULL = "DISK_FULL"
    GPU_FAULT = "GPU_FAULT"
    NODE_SETUP = "NODE_SETUP"
    COMM_TIMEOUT = "COMM_TIMEOUT"
    COMM_ERROR = "COMM_ERROR"
    RENDEZVOUS = "RENDEZVOUS"
    START_ORDER = "START_ORDER"
    PEER_LOST = "PEER_LOST"
    EVICTED = "EVICTED"
    PREEMPTED = "PREEMPTED"
    PREEMPTED_BEFORE_START = "PREEMPTED_BEFORE_START"
    NODE_LOST = "NODE_LOST"
    KILLED_OUTSIDE = "KILLED_OUTSIDE"
    UNSCHEDULABLE = "UNSCHEDULABLE"
    QUOTA = "QUOTA"
    STORAGE_TRANSIENT = "STORAGE_TRANSIENT"
    CLOCK = "CLOCK"
    CKPT_CORRUPT = "CKPT_CORRUPT"
    HANG = "HANG"
    DEADLINE = "DEADLINE"
    IDLE = "IDLE"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Policy:
    """``costs``: uses ``backoffLimit``. ``restart``: never, ``once`` more, or always."""

    costs: bool
    restart: str
    next_step: str


_USER = "mend the program or its arguments; the tail of the first failing rank names the line"
_WAIT = "nothing to do: the job resumes from its newest checkpoint"
_COMM = "look at the rank that failed first; the others are its survivors"
F = FailureClass
POLICIES: Mapping[FailureClass, Policy] = {
    F.USER_ERROR: Policy(True, "once", _USER),
    F.CONFIG: Policy(True, "once", "correct the job spec"),
    F.IMAGE: Policy(True, "once", "correct spec.training.image or the image itself"),
    F.DATA_MISSING: Policy(
        True, "once", "check the dataStores and the paths that the program opens"
    ),
    F.STORAGE_AUTH: Policy(True, "once", "check the credentials that the data store names"),
    F.AUTH: Policy(True, "once", "check the credentials of the program"),
    F.LICENSE: Policy(True, "once", "check the licence that the program asks for"),
    F.COMM_MISUSE: Policy(True, "once", "check that there are not more processes than GPUs"),
    F.NUMERIC: Policy(True, "once", "lower the learning rate or look at the data of the last step"),
    F.HOST_OOM: Policy(True, "once", "raise resources.memory by 20-30 % or use fewer loaders"),
    F.GPU_OOM: Policy(True, "once", "use a smaller micro-batch"),
    F.SHM: Policy(True, "once", "raise resources.sharedMemory"),
    F.DISK_FULL: Policy(True, "once", "make room on the file system that is named"),
    F.GPU_FAULT: Policy(False, "always", "have the device looked at; it is avoided for 24 h"),
    F.NODE_SETUP: Policy(False, "always", "have the node looked at; it is avoided for 24 h"),
    F.COMM_TIMEOUT: Policy(True, "always", _COMM),
    F.COMM_ERROR: Policy(True, "always", _COMM),
    F.RENDEZVOUS: Policy(True, "always", "check the master address, the port and network policies"),
    F.START_ORDER: Policy(True, "always", "check whether another program uses the master port"),
    F.PEER_LOST: Policy(True, "always", _COMM),
    F.EVICTED: Policy(False, "always", _WAIT),
    F.PREEMPTED: Policy(False, "always", _WAIT),
    F.PREEMPTED_BEFORE_START: Policy(False, "always", _WAIT),
    F.NODE_LOST: Policy(False, "always", _WAIT),
    F.KILLED_OUTSIDE: Policy(False, "always", _WAIT + "; find out who kills its processes"),
    F.UNSCHEDULABLE: Policy(False, "always", "free the resources that are named, or ask for fewer"),
    F.QUOTA: Policy(False, "always", "wait for the quota or have it raised"),
    F.STORAGE_TRANSIENT: Policy(True, "always", "check the storage that is named"),
    F.CLOCK: Policy(True, "always", "set the clock of the node"),
    F.CKPT_CORRUPT: Policy(False, "always", "nothing to do: an older checkpoint is used"),
    F.HANG: Policy(True, "always", "look where the ranks stood; often one waits for a collective"),
    F.DEADLINE: Policy(False, "never", "raise spec.resources.gpuTimeLimit and continue the job"),
    F.IDLE: Policy(False, "never", "look what the ranks waited for, then continue the job"),
    F.CANCELLED: Policy(False, "never", "continue the job, or clear the task"),
    F.UNKNOWN: Policy(True, "always", "read the tail of the first failing rank"),
}

UNKNOWN_RESTARTS = 2
"""UNKNOWN restarts at most twice. Chosen."""
