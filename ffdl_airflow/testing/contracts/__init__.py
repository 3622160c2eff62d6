"""Contract suites: classes that the tests of an adapter subclass."""

import pytest

for _suite in ("engine", "ledger", "registry", "store"):
    pytest.register_assert_rewrite(f"{__name__}.{_suite}")  # a failure shows what was found
