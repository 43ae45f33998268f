"""Which kinds of object can a job become? One file each."""
