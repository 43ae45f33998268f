"""Monitoring of a run from its event log: views, series, metrics, alerts and health; live and replayed."""
