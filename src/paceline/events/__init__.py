"""Event log of a run: append-only and versioned; everything that shows a run reads it."""
