"""How the console answers: who may ask, what each answer looks like, streams of changes."""
