"""What a checkpoint is on disk: shards with their index, the manifest, histories, durable files."""
