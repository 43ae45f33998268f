"""Views of a run, built line by line from its event log."""
