"""What happened? An append-only, versioned log per run; everything that shows a run reads it."""
