"""The agents of ``benchmarks/control_plane.py``, and what it measures of a daemon and a server."""
