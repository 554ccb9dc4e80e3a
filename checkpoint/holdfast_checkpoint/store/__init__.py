"""Where checkpoints are kept: folders and object stores, uploads, second copies, retention."""
