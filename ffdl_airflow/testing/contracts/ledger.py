"""What every ledger promises. Subclass it and give the fixture ``ledger``.

``reopened`` is a fixture too: a second object on the same storage, as another process has it.
"""

import threading
from datetime import timedelta

import pytest

from ffdl_airflow.core.events import Kind, NewEvent
from ffdl_airflow.ledger.base import Batch, Conflict, Ledger
from ffdl_airflow.testing.builders import T0

JOB = "bert-base-0123456789"
ROW = {"phase": "Submitted", "name": "bert-base"}


def new(
    kind: Kind = Kind.PROGRESS_SUMMARY, *, dedupe: str | None = None, step: int = 1
) -> NewEvent:
    """An event with something in every field."""
    return NewEvent(kind=kind, at=T0 + timedelta(seconds=step), body={"step": step, "é": [1, None]},
                    attempt=2, dedupe=dedupe, source={"host": "node-7", "pid": 41})  # fmt: skip


class LedgerContract:
    """Run on the fake and on every adapter."""

    def test_what_is_read_is_what_was_appended(self, ledger: Ledger, reopened: Ledger) -> None:
        """Every field comes back, also to another process."""
        written = ledger.append(Batch(stream=JOB, expected_seq=0, events=[new(), new(step=2)]))
        assert reopened.read(JOB) == written
        assert [event.seq for event in written] == [1, 2]
        assert written[0].body == {"step": 1, "é": [1, None]}
        assert written[0].at == T0 + timedelta(seconds=1)
        assert (written[0].attempt, written[0].source) == (2, {"host": "node-7", "pid": 41})

    def test_reading_goes_on_after_a_seq(self, ledger: Ledger) -> None:
        """Only what is new."""
        ledger.append(Batch(stream=JOB, expected_seq=0, events=[new(step=n) for n in range(5)]))
        assert [event.seq for event in ledger.read(JOB, after=3)] == [4, 5]
        assert ledger.read("another-job") == []

    def test_who_has_read_less_loses(self, ledger: Ledger, reopened: Ledger) -> None:
        """Compare-and-append, and nothing is written by the loser."""
        ledger.append(Batch(stream=JOB, expected_seq=0, events=[new()]))
        with pytest.raises(Conflict):
            reopened.append(Batch(stream=JOB, expected_seq=0, events=[new(), new()]))
        assert len(ledger.read(JOB)) == 1

    def test_a_known_dedupe_is_left_out(self, ledger: Ledger) -> None:
        """Also twice in one batch; the rest of the batch is written."""
        first = ledger.append(Batch(stream=JOB, expected_seq=0, events=[new(dedupe="journal:1:1")]))
        again = Batch(stream=JOB, expected_seq=1, events=[
            new(dedupe="journal:1:1"), new(dedupe="journal:1:2"), new(dedupe="journal:1:2"), new(),
        ])  # fmt: skip
        assert [event.dedupe for event in ledger.append(again)] == ["journal:1:2", None]
        assert len(ledger.read(JOB)) == len(first) + 2
        other = Batch(stream="another-job", expected_seq=0, events=[new(dedupe="journal:1:1")])
        assert len(ledger.append(other)) == 1

    def test_several_streams_are_written_together_or_not_at_all(self, ledger: Ledger) -> None:
        """The second batch fails, so the first is not there either."""
        ledger.append(Batch(stream="queue-default", expected_seq=0, events=[new()]))
        with pytest.raises(Conflict):
            ledger.append(
                Batch(stream=JOB, expected_seq=0, events=[new()], projection=ROW),
                Batch(stream="queue-default", expected_seq=0, events=[new()]),
            )
        assert ledger.read(JOB) == []
        assert ledger.jobs() == []

    def test_the_row_comes_with_the_events(self, ledger: Ledger) -> None:
        """A projection replaces the row; without one only the seq moves."""
        ledger.append(Batch(stream=JOB, expected_seq=0, events=[new()], projection=ROW))
        ledger.append(Batch(stream=JOB, expected_seq=None, events=[new()]))
        (row,) = ledger.jobs(JOB)
        assert (row.job_id, row.seq, row.phase, row.summary) == (JOB, 2, "Submitted", ROW)
        ledger.append(Batch(stream=JOB, expected_seq=2, events=[new()],
                            projection=ROW | {"phase": "Validated"}))  # fmt: skip
        assert ledger.jobs(JOB)[0].phase == "Validated"
        assert ledger.jobs("another-job") == []

    def test_the_snapshot_is_never_ahead_of_the_events(self, ledger: Ledger) -> None:
        """It comes with its events, and not where one of them was left out."""
        first = Batch(stream=JOB, expected_seq=0, events=[new(dedupe="released:1")],
                      projection=ROW, snapshot={"shape": "1", "state": {"seq": 1}})  # fmt: skip
        ledger.append(first)
        again = Batch(stream=JOB, expected_seq=1, events=[new(dedupe="released:1"), new()],
                      projection=ROW, snapshot={"shape": "1", "state": {"seq": 3}})  # fmt: skip
        ledger.append(again)
        assert ledger.jobs(JOB)[0].snapshot == {"shape": "1", "state": {"seq": 1}}
        assert ledger.jobs(JOB)[0].seq == 2
        ledger.append(Batch(stream=JOB, expected_seq=None, events=[new()]))
        assert ledger.jobs(JOB)[0].snapshot == {"shape": "1", "state": {"seq": 1}}
        assert len(ledger.read(JOB, after=1)) == 2

    def test_lists_show_the_newest_first(self, ledger: Ledger) -> None:
        """By the time of the first event."""
        for name in ("first", "second", "third"):
            ledger.append(Batch(stream=name, expected_seq=0, events=[new()], projection=ROW))
        assert [row.job_id for row in ledger.jobs()] == ["third", "second", "first"]

    def test_the_live_status_is_replaced(self, ledger: Ledger, reopened: Ledger) -> None:
        """A cache of one document."""
        ledger.append(Batch(stream=JOB, expected_seq=0, events=[new()], projection=ROW))
        assert ledger.jobs(JOB)[0].status is None
        ledger.put_status(JOB, {"step": 1})
        ledger.put_status(JOB, {"step": 2})
        ledger.put_status(JOB, {"step": 2})
        assert reopened.jobs(JOB)[0].status == {"step": 2}

    def test_a_ledger_keeps_its_identity(self, ledger: Ledger, reopened: Ledger) -> None:
        """Whoever opens it again sees the same id."""
        assert ledger.ledger_id == reopened.ledger_id

    def test_of_many_drivers_one_wins_each_seq(self, ledger: Ledger, reopened: Ledger) -> None:
        """Two writers, 20 seqs: 20 events in all, without a gap, and each loss is a Conflict."""
        wins: list[str] = []

        def write(name: str, mine: Ledger) -> None:
            while (last := len(mine.read(JOB))) < 20:
                try:
                    mine.append(Batch(stream=JOB, expected_seq=last, events=[new(step=last)]))
                    wins.append(name)
                except Conflict:
                    continue

        pairs = [("a", ledger), ("b", reopened)]
        threads = [threading.Thread(target=write, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [event.seq for event in ledger.read(JOB)] == list(range(1, 21))
        assert [event.body["step"] for event in ledger.read(JOB)] == list(range(20))
        assert len(wins) == 20

    def test_wishes_are_never_lost(self, ledger: Ledger, reopened: Ledger) -> None:
        """Appends without an expected seq from two threads at once all get in."""

        def wish(mine: Ledger) -> None:
            for _ in range(10):
                mine.append(Batch(stream=JOB, expected_seq=None, events=[new(Kind.STOP_WANTED)]))

        threads = [threading.Thread(target=wish, args=(mine,)) for mine in (ledger, reopened)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [event.seq for event in ledger.read(JOB)] == list(range(1, 21))
