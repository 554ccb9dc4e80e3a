"""``python -m holdfast_cli`` is ``holdfast``."""

from holdfast_cli.main import main

main()
