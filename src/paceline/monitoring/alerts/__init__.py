"""Alerts: rules, evaluation, notification."""
