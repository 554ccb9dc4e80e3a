"""Harms this rank on purpose, at an exact step and phase, to show that Holdfast finds the fault and recovers.

::

    from holdfast_hooks.faults import Fault, Injector

    with holdfast_hooks.attach(state={"model": model}) as hooks:
        Injector.into(hooks).arm(Fault("gil-held", rank=3, step=100))
        for step in hooks.steps(until=1000): ...

While no fault is armed, this costs the training thread nothing. See docs/fault-injection.md.
"""

from holdfast_hooks.faults.catalogue import CATALOGUE, check
from holdfast_hooks.faults.fault import Fault
from holdfast_hooks.faults.injector import Injector
from holdfast_hooks.faults.random_faults import random_faults

__all__ = ["CATALOGUE", "Fault", "Injector", "check", "random_faults"]
