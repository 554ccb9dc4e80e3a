"""What can be wrong with a run: a file for each detector. ``framework`` says what one is, ``registry`` lists them."""
