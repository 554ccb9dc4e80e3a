"""Entry point of the ``holdfast`` command."""
