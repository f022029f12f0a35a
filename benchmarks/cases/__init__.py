"""What the suites measure: a file for each kind of case, and the peers that the layers are compared with."""
