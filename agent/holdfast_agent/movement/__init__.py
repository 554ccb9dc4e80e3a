"""Whether anything in the process tree of a silent rank still moves."""
