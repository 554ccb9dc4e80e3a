"""What can be wrong with a run: mostly a file for each detector. ``framework`` defines one, ``registry`` lists all."""
