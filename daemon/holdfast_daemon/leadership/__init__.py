"""One leader per run: its lease, its loop, its store."""
