"""Discrete-event simulator and advisor. Pure: a profile and a seed in, a prediction out."""
