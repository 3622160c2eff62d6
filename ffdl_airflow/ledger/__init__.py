"""What happened: the events of every job, appended by compare-and-append."""
