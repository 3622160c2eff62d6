"""The app over fakes, in this process; and, for the browser, one real Airflow with real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.seeds import Site, failed_once, log_of, running, succeeded


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An installation without jobs, whose reader may see everything."""
    made = Site(tmp_path)
    made.allow("nightly", "secret", None)
    return made


@pytest.fixture
def three(site: Site) -> Site:
    """One job runs, one has succeeded after a failure, one is of the command line."""
    site.put("runs-1111111111", running(log_of("runs-1111111111", name="runs")).events)
    done = succeeded(failed_once(running(log_of("done-2222222222", dag="secret", name="done"))))
    site.put("done-2222222222", done.events)
    site.put("mine-3333333333", log_of("mine-3333333333", dag=None, name="mine").events)
    return site
