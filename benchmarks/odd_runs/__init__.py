"""Healthy training runs with an unusual moment, and their twins, in which that moment never ends.

``cases/`` defines the runs, ``odd_run.py`` carries one out and ``judge.py`` judges it. In each rank, ``__main__.py``
trains and pauses with one of the ``activities/``. ``outside.py`` pauses a run from another process.
"""
