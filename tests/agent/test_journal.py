"""The journal: in order, without gaps, and nothing that was said is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ffdl_airflow.agent import protocol
from ffdl_airflow.agent.journal import Journal
from ffdl_airflow.agent.loop import Loop
from tests.conftest import wait_for


def fill(folder) -> None:
    """Use up every byte of a file system."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    with (folder / "crumbs").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x")
        except OSError:
            pass


def test_a_new_coordinator_continues_the_numbers(tmp_path):
    path = tmp_path / "journal" / "1.jsonl"
    first = Journal(Loop(), path=str(path), placement=1)
    first.append("Placed", None, {"joined": ["worker-0"]})
    first.append("Running", 3, {})
    first.close()
    with path.open("ab") as file:
        file.write(b'{"v": 1, "seq": 3, "kind": "Attem')
    second = Journal(Loop(), path=str(path), placement=1)
    second.append("AttemptEnded", 3, {"ok": False})
    second.close()
    entries = protocol.read_journal(str(path), 0)
    assert [entry["seq"] for entry in entries] == [1, 2, 3]
    assert entries[-1]["kind"] == "AttemptEnded"
    assert len(path.read_text().splitlines()) == 3, "the torn line is gone"
    assert protocol.read_journal(str(path), 2) == entries[2:]


def test_entries_wait_in_memory_while_the_disk_is_full(small_disk):
    path = small_disk / "journal" / "1.jsonl"
    loop = Loop()
    journal = Journal(loop, path=str(path), placement=1)
    journal.append("Placed", None, {})
    fill(small_disk)
    told = []
    while not journal.waiting:  # the file's last page may still have room
        journal.append("ProgressSummary", 1, {"text": "x" * 100})
    journal.append("AttemptEnded", 1, {"ok": True}, durable=lambda: told.append("AttemptEnded"))
    assert "No space left" in journal.trouble
    assert told == []
    before = protocol.read_journal(str(path), 0)
    assert [entry["seq"] for entry in before] == list(range(1, len(before) + 1))
    assert journal.durable_seq == len(before)
    (small_disk / "filler").unlink()
    loop.call_later(3, loop.stop)
    journal.append("Released", None, {}, durable=loop.stop)
    loop.run()
    assert told == ["AttemptEnded"]
    entries = protocol.read_journal(str(path), 0)
    assert [entry["seq"] for entry in entries] == list(range(1, journal.seq + 1))
    assert [entry["kind"] for entry in entries][-2:] == ["AttemptEnded", "Released"]
    assert journal.trouble is None
    journal.close()


def test_a_gang_goes_on_without_room_for_its_journal(make_placement, small_disk):
    trainer = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
sys.exit(5)
"""
    mark = small_disk.parent / "go-on"
    placement = make_placement(
        trainer, args=(str(mark),), journal=str(small_disk / "journal" / "1.jsonl")
    ).up()
    placement.go()
    placement.wait_state(protocol.RUNNING)
    fill(small_disk)
    room = -len(Path(placement.plan["journal"]).read_bytes()) % os.sysconf("SC_PAGE_SIZE")
    why = {"why": "x" * min(room, 3000)}
    while not placement.status()["warnings"]:
        assert placement.request("POST", protocol.PATH_SAVE, why)[0] == 202
    mark.touch()
    document = placement.wait_state(protocol.HOLDING)
    assert "No space left" in document["warnings"][0]
    assert placement.journal("AttemptEnded") == []
    (small_disk / "filler").unlink()
    assert placement.ended()["cause"]["exit"] == 5
    entries = placement.journal()
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    wait_for(lambda: placement.status()["warnings"] == [])
    placement.stop(then="leave")
    placement.wait_gone()


def test_each_line_is_one_document_with_its_version(make_placement):
    placement = make_placement("pass").up()
    placement.go()
    placement.ended()
    placement.wait_gone()
    for line in Path(placement.plan["journal"]).read_bytes().splitlines():
        entry = json.loads(line)
        assert set(entry) == {"v", "seq", "kind", "attempt", "at", "placement", "body"}
        assert entry["v"] == 1
        assert entry["at"].endswith("Z")
