"""Diagnosis of jobs that are stuck or dead, and the decision what to do. Pure."""
