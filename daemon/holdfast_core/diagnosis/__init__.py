"""Who holds the others up: one wait-for graph, read from counters on hosts and from recorders of devices."""
