"""Contract suites: classes that the tests of an adapter subclass."""
