"""What is a cluster good for? Checks over a snapshot of plain dicts; one file per subject."""
