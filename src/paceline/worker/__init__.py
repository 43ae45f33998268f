"""What one participant of a run does. Here torch is imported, and nowhere above."""
