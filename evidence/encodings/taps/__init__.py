"""Do learned tables form the kernel? Five new seeds, by a plan."""
