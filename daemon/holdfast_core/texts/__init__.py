"""The texts of verdicts, rendered from their details: one file for each family."""
