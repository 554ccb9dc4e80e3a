"""One per node: supervises ranks, ingests reports, holds snapshots, writes checkpoints, exports metrics."""
