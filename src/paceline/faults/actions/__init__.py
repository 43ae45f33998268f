"""What may an operator do to a run that is at work? One way for the command line, the page and programs."""
