"""Parse, call app, print; one file per noun."""
