"""The replicated state: a pure, deterministic machine to which the log is applied."""
