"""How much the tests notice: small changes to the source, and whether a test fails for each."""
