"""Gradient compression: codecs, error feedback, and compressed means."""
