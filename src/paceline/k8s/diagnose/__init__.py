"""Why is a job on a cluster stuck or dead, and what shall be done? Pure: told what was seen, and when."""
