"""From text to batches: sources, tokens, a cached corpus, the order of samples, and reading ahead."""
