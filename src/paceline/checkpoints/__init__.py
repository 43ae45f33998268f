"""Checkpoints: snapshots of each participant, written whole or not at all."""
