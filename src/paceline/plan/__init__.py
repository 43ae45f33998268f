"""What was decided? A frozen, complete plan: the only thing that crosses the process boundary."""
