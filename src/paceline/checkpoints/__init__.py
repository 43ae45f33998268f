"""What survives a run: snapshots of each participant, whole or not at all."""
