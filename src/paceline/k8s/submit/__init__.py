"""Submission of a job to a cluster, following it, and new attempts."""
