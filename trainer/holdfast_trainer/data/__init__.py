"""The path from text to batches: source files, tokens, a cached corpus, batches, and reading ahead."""
