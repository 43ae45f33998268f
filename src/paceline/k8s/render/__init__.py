"""Manifests of a job, one file for each family of kinds."""
