"""Evidence in, verdict out: what a failed attempt died of and what that means."""
