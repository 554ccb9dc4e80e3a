"""The flags of every command. Nothing here imports what a command needs to do its work."""
