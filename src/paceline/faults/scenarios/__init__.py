"""Breaking a run on purpose, and checking that what was promised holds."""
