"""One question or order to the coordinator from beside it, for a driver that can only run a command
in its pod.

``python agent.pyz --ask <placement dir> <method> <path> [<body as JSON>]`` prints one line, a JSON
object: ``status`` is HTTP's, 0 where nobody has answered, and ``document`` the answer. The token is
read from the placement's directory, so that no command line has it. Exit codes: 0 answered, 1
nobody has, 2 the call or the plan is wrong. Not for: keeping a connection; each call is a process.
"""

import json
import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from . import address, protocol, wire
from .address import Address
from .log import log
from .plan import PlanError, load_plan

ANSWERED, NO_ANSWER, WRONG_CALL = 0, 1, 2
_PATIENCE_S = protocol.LONG_POLL_S + 10.0
"""Longest silence of the coordinator. Chosen: a long-poll and some more."""


def main(words: List[str]) -> int:
    """Ask, print the answer; returns the exit code."""
    try:
        folder, method, path = words[:3]
        body = json.loads(words[3]) if len(words) > 3 else None  # noqa: PLR2004 - one may follow
    except ValueError:
        log("usage: agent.pyz %s <placement dir> <method> <path> [<body as JSON>]" % protocol.ASK)
        return WRONG_CALL
    try:
        plan = load_plan(os.path.abspath(folder))
        with open(os.path.join(plan.dir, protocol.TOKEN_FILE), encoding="utf-8") as file:
            token = file.read().strip()
    except (PlanError, OSError) as error:
        log(str(error))
        return WRONG_CALL
    try:
        message = wire.request(method, path, body, token=token)
        status, document = _ask(_here(plan.meeting_point), message)
    except (OSError, wire.WireError) as error:
        status, document = 0, {"v": 1, "error": "no-answer", "text": str(error)}
    sys.stdout.write(json.dumps({"v": 1, "status": status, "document": document}) + "\n")
    return ANSWERED if status else NO_ANSWER


def _here(meeting_point: Address) -> Address:
    """By the way that needs no names and no network: the coordinator is in this very pod."""
    return meeting_point if meeting_point.is_local else meeting_point._replace(host="localhost")


def _ask(to: Address, message: bytes) -> Tuple[int, Dict[str, Any]]:
    peer = address.dial(to, timeout_s=_PATIENCE_S)
    try:
        peer.settimeout(_PATIENCE_S)
        peer.sendall(message)
        received = bytearray()
        answer: Optional[Tuple[int, Dict[str, Any]]] = None
        while answer is None:
            data = peer.recv(65536)
            if not data:
                text = "the coordinator has hung up"
                raise ConnectionError(text)
            received += data
            answer = wire.read_response(received)
        return answer
    finally:
        peer.close()
