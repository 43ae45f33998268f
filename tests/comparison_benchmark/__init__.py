"""Tests of what one process and many cost, whoever trains."""
