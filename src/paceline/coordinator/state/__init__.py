"""What the cluster has agreed on: a pure, deterministic machine that the log is fed into."""
