"""Monitoring of a run from its event log: views, series, metrics, alerts and health; live and replayed.

The event log is the only interface: probes write to it, and everything else reads it, so that a live view
and a replayed one are equal. Threads of the launcher's process, all daemons that are joined at the end of
the run: the collector (machine and processes, once a second), a second one for the coordinator's nodes, one
that evaluates alert rules, and one for each notifier, which takes messages from a bounded queue. The metrics
server has a thread per request; one lock guards the page that they share. Each view has its own `Feed`,
and nothing here is on the step path. A probe or a notifier that fails is reported, and the run continues.
"""
