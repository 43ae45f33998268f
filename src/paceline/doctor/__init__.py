"""Checks of this machine: facts are gathered within a time limit and judged separately."""
