"""A simulator of hangs on NCCL, to see whether a detector names the right rank.

``programs`` draws training programs, ``faults`` puts one fault into each, and ``machine`` runs them until nothing
moves. ``documents`` prints what torch's recorder shows of each rank. ``cases`` puts these together. ``judge`` compares
the verdicts of a detector with the truth. Who is at fault is known from the fault alone. ``evidence`` says whether it
can be seen. ``reference`` answers the same question from the dumps alone, by brute force, for small worlds.

To try a detector, a function from ``Case`` to anything with ``kind`` and ``culprits``::

    python -m tests.simulation.nccl my_package.my_module:my_function --count 2000
"""
