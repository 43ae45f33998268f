"""How files travel between this machine and a volume of a cluster: in which pieces, through which pod."""
