"""Whose turn it is: the order, who counts, who may pass on which nodes, and that nobody starves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.engines.kubernetes.capacity import Cluster, Fit, fit
from ffdl_airflow.engines.kubernetes.node_match import groups_of
from ffdl_airflow.engines.kubernetes.turns import WAITER_LIFE_S, Behind, Turn, Waiter, turn
from tests.engines.kubernetes.objects import Plain, container, gang, node, pod

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def waiter(name: str, pods: list[Plain], *, asked: float = 0.0, **more: Any) -> Waiter:
    """A waiter that was renewed when it is looked at, at 1000 s."""
    fields = {"priority": 100_000, "renewed_at": after(1000), **more}
    return Waiter(placement=f"{name}/1", asked_at=after(asked), demand=groups_of(pods), **fields)


BIG = [node(f"big-{i}", gpu=8) for i in range(4)]
SMALL = [node(f"small-{i}", gpu=4, labels={"accelerator": "t4"}) for i in range(2)]
CPU = [node("cpu-0", gpu=0)]
POOL = [*BIG, *SMALL, *CPU]
OLD = waiter("old", gang(4, container(gpu=8)), asked=0)
FOUR_GPUS = gang(1, container(gpu=4))


def ask(mine: Waiter, *others: Waiter, nodes: list[Plain] | None = POOL) -> Turn | Behind:
    return turn(mine, others, nodes, now=after(1000))


YOUNG = waiter("young", FOUR_GPUS, asked=10)
# (id, mine, the other, whether mine may go anywhere although the other waits)
ORDER = [
    ("younger", YOUNG, waiter("old", FOUR_GPUS), False),
    ("older", waiter("old", FOUR_GPUS), YOUNG, True),
    ("C2-higher-priority", replace(YOUNG, priority=1_000_000), waiter("old", FOUR_GPUS), True),
    ("C2-lower-priority", replace(YOUNG, priority=1), waiter("z", FOUR_GPUS, asked=99), False),
    ("same-age-by-name", waiter("a", FOUR_GPUS), waiter("b", FOUR_GPUS), True),
    ("same-age-by-name-other", waiter("b", FOUR_GPUS), waiter("a", FOUR_GPUS), False),
    ("renewed-just-so", YOUNG, waiter("old", FOUR_GPUS, renewed_at=after(940)), False),
    ("lapsed", YOUNG, waiter("old", FOUR_GPUS, renewed_at=after(939)), True),
    ("held-back", YOUNG, waiter("old", FOUR_GPUS, held_back="quota gpus"), True),
    ("own-renewal-does-not-count", waiter("old", FOUR_GPUS, renewed_at=T0), YOUNG, True),
    ("larger-than-the-cluster", YOUNG, waiter("old", gang(5, container(gpu=8))), True),
    ("larger-than-any-node", YOUNG, waiter("old", gang(1, container(gpu=9))), True),
    ("roles-larger-than-the-cluster", YOUNG,
     waiter("old", [*gang(1, container(gpu=8), role="chief"), *gang(4, container(gpu=7))]), True),
]  # fmt: skip


@pytest.mark.parametrize(("mine", "other", "first"), [row[1:] for row in ORDER],
                         ids=[row[0] for row in ORDER])  # fmt: skip
def test_order(mine: Waiter, other: Waiter, first: bool) -> None:
    answer = ask(mine, other, nodes=BIG)
    assert answer == Turn() if first else isinstance(answer, Behind)


@pytest.mark.parametrize(
    ("other", "first"),
    [(OLD, False), (waiter("old", gang(1, container(gpu=99))), False),
     (replace(OLD, renewed_at=T0), True), (waiter("new", FOUR_GPUS, asked=20), True)],
    ids=["older", "what-it-can-use-is-not-known", "lapsed", "younger"],
)  # fmt: skip
def test_without_node_rights_nobody_passes(other: Waiter, first: bool) -> None:
    answer = ask(YOUNG, other, nodes=None)
    assert answer == Turn() if first else isinstance(answer, Behind)


@pytest.mark.parametrize(("count", "who"), [
    (1, "w0/1"), (3, "w0/1, w1/1, w2/1"), (4, "more than 3 gangs"), (5, "more than 3 gangs"),
    (6, "more than 5 gangs"), (20, "more than 10 gangs"), (21, "more than 20 gangs"),
])  # fmt: skip
def test_who_is_ahead_is_named_or_counted(count: int, who: str) -> None:
    others = [waiter(f"w{i}", FOUR_GPUS, asked=i) for i in range(count)]
    answer = ask(waiter("last", FOUR_GPUS, asked=count), *reversed(others))
    assert isinstance(answer, Behind)
    assert answer.ahead == [f"w{i}/1" for i in range(count)]
    assert answer.reason == f"waits for its turn: {who} came first or have a higher priority"


T4 = {"nodeSelector": {"accelerator": "t4"}}
SMALL_NAMES = frozenset({"small-0", "small-1"})
PASSING = [
    ("too-small-for-the-one-ahead", FOUR_GPUS, [OLD], SMALL_NAMES),
    ("its-own-selector-does-it", gang(1, container(gpu=4), **T4), [OLD], None),
    ("cpu-only", gang(1, container()), [OLD], SMALL_NAMES | {"cpu-0"}),
    ("same-nodes", gang(1, container(gpu=8)), [OLD], frozenset()),
    ("all-of-those-ahead", FOUR_GPUS, [OLD, waiter("t4", gang(1, container(gpu=4), **T4))],
     frozenset()),
    ("any-role-of-the-one-ahead", gang(1, container()),
     [waiter("ps", [*gang(2, container(gpu=8)), *gang(1, container(), role="ps")])], frozenset()),
    ("fits-nowhere", gang(1, container(gpu=99)), [OLD], None),  # capacity tells why
]  # fmt: skip


@pytest.mark.parametrize(("pods", "ahead", "only"), [row[1:] for row in PASSING],
                         ids=[row[0] for row in PASSING])  # fmt: skip
def test_passing_is_for_nodes_that_nobody_ahead_can_use(
    pods: list[Plain], ahead: list[Waiter], only: frozenset[str] | None
) -> None:
    answer = ask(waiter("young", pods, asked=10), *ahead)
    if only == frozenset():
        assert isinstance(answer, Behind)
    else:
        assert answer == Turn(only=only)


def test_a_node_that_is_away_is_still_kept() -> None:
    away = [node("big-0", gpu=8, ready="Unknown"), node("big-1", gpu=8, unschedulable=True)]
    old = waiter("old", gang(2, container(gpu=8)))
    assert isinstance(ask(waiter("young", FOUR_GPUS, asked=1), old, nodes=away), Behind)


# --- a simulated pool ---


@dataclass
class Job:
    """A gang that asks at ``asks``, runs for ``runs`` ticks and is renewed at every tick."""

    name: str
    pods: list[Plain]
    priority: int
    asks: int
    runs: int
    started: int | None = None
    where: dict[str, str] = field(default_factory=dict)

    def waits(self, now: int) -> bool:
        return self.asks <= now and self.started is None

    def runs_at(self, now: int) -> bool:
        return self.started is not None and now < self.started + self.runs

    def waits_before(self, tick: int) -> bool:
        """Whether it had asked and was still waiting when somebody started at ``tick``."""
        return self.asks <= tick and (self.started is None or self.started > tick)

    def waiter(self, now: int) -> Waiter:
        return Waiter(placement=self.name, priority=self.priority, asked_at=after(self.asks),
                      renewed_at=after(now), demand=groups_of(self.pods))  # fmt: skip

    def bound(self) -> Iterator[Plain]:
        return (pod(f"{self.name}-{p['metadata']['name']}", *p["spec"]["containers"],
                    on=self.where[p["metadata"]["name"]]) for p in self.pods)  # fmt: skip


POOL_GPUS = (4, 4, 2)
SIM_NODES = [node(f"n-{i}", gpu=gpus) for i, gpus in enumerate(POOL_GPUS)]


@st.composite
def jobs(draw: st.DrawFn, priorities: tuple[int, ...]) -> list[Job]:
    shapes = st.tuples(st.integers(1, 3), st.integers(1, 4))  # replicas, GPUs of each
    return [
        Job(f"job-{i:02d}", gang(*_shape(draw(shapes))), draw(st.sampled_from(priorities)),
            draw(st.integers(0, 6)), draw(st.integers(1, 4)))
        for i in range(draw(st.integers(1, 8)))
    ]  # fmt: skip


def _shape(drawn: tuple[int, int]) -> tuple[int, Plain]:
    return drawn[0], container(gpu=drawn[1])


def simulate(every: list[Job], *, ticks: int = 80) -> None:
    """At each tick every waiter tries once, the last that asked first: the worst order."""
    for now in range(ticks):
        for job in sorted(every, key=lambda job: job.asks, reverse=True):
            if job.waits(now):
                others = [o.waiter(now) for o in every if o is not job and o.waits(now)]
                try_to_place(job, every, turn(job.waiter(now), others, SIM_NODES, now=after(now)),
                             now)  # fmt: skip


def try_to_place(job: Job, every: list[Job], answer: Turn | Behind, now: int) -> None:
    if isinstance(answer, Behind):
        return
    bound = [pod for other in every if other.runs_at(now) for pod in other.bound()]
    found = fit(job.pods, Cluster(nodes=SIM_NODES, pods=bound), only=answer.only)
    if isinstance(found, Fit):
        job.started, job.where = now, dict(found.assignment)


def alone(job: Job) -> bool:
    return isinstance(fit(job.pods, Cluster(nodes=SIM_NODES)), Fit)


@given(jobs(priorities=(100_000,)))
def test_everybody_who_can_run_does(every: list[Job]) -> None:
    simulate(every)
    assert all((job.started is not None) == alone(job) for job in every)


def usable(job: Job) -> set[str]:
    gpus = int(job.pods[0]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    return {f"n-{i}" for i, there in enumerate(POOL_GPUS) if there >= gpus}


@given(jobs(priorities=(100_000, 1_000_000)))
def test_nobody_behind_takes_a_node_of_somebody_ahead(every: list[Job]) -> None:
    simulate(every)
    for head in filter(alone, every):
        for later in every:
            waited = later.started is not None and head.waits_before(later.started)
            if waited and later.waiter(0).rank > head.waiter(0).rank:
                assert not usable(head) & set(later.where.values())


@pytest.mark.parametrize("gpus", [3, 4])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_stream_of_small_ones_does_not_starve_a_big_one(gpus: int, runs: int) -> None:
    """Two small gangs come at every tick and fill the two nodes of which the big one needs both."""
    stream = [Job(f"small-{i:02d}", gang(1, container(gpu=gpus)), 100_000, i // 2, runs)
              for i in range(24)]  # fmt: skip
    big = Job("big", gang(2, container(gpu=4)), 100_000, 2, 2)
    simulate([*stream, big], ticks=14)
    ahead = sum(job.asks <= big.asks for job in stream)
    assert big.started is not None
    assert big.started <= big.asks + ahead // 2 * runs
    assert any(job.started is None or job.started > big.started for job in stream)


def test_a_small_one_works_on_what_the_big_one_cannot_use() -> None:
    running = Job("running", gang(1, container(gpu=1)), 100_000, 0, 50)
    big = Job("big", gang(2, container(gpu=4)), 100_000, 1, 2)
    small = Job("small", gang(1, container(gpu=2)), 100_000, 2, 2)
    running.started, running.where = 0, {"worker-0": "n-0"}
    simulate([running, big, small], ticks=10)
    assert (big.started, small.started, set(small.where.values())) == (None, 2, {"n-2"})


@given(jobs(priorities=(100_000, 1_000_000)), st.randoms(use_true_random=False))
def test_the_order_in_which_waiters_are_read_does_not_count(every: list[Job], random: Any) -> None:
    mine, *others = [job.waiter(6) for job in every]
    shuffled = random.sample(others, len(others))
    assert turn(mine, others, SIM_NODES, now=after(6)) == turn(
        mine, shuffled, SIM_NODES[::-1], now=after(6)
    )


@given(jobs(priorities=(100_000, 1_000_000)))
def test_the_head_may_always_go(every: list[Job]) -> None:
    waiters = sorted((job.waiter(6) for job in every), key=lambda found: found.rank)
    assert turn(waiters[0], waiters[1:], SIM_NODES, now=after(6)) == Turn()


def test_a_waiter_lives_for_a_minute() -> None:
    assert WAITER_LIFE_S == 60.0
