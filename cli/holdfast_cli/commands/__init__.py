"""The subcommands of ``holdfast``, one mechanism per module: options in, one call, output."""
