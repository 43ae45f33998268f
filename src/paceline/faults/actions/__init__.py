"""Operator actions on a running run, the same for the command line, the dashboard and programs."""
