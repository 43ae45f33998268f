"""What does a browser see of a run, and what may it ask? A server of its own process; the page it serves."""
