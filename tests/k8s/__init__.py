"""Tests of what is asked of a Kubernetes cluster."""
