"""What do finished runs say, side by side? Statistics, verdicts and pages, made of run folders alone."""
