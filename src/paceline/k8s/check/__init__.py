"""Checks of a cluster over a snapshot of plain dicts; one file per subject."""
