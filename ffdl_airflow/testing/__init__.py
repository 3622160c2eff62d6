"""What is shipped for tests: builders, strategies, contract suites."""
