"""The rendezvous of torchrun for Holdfast: ``torchrun --rdzv-backend=holdfast --rdzv-endpoint=redis://HOST:PORT ...``.

The torchruns of all nodes meet in Redis. One of them writes down the world, and serves its store:

* ``meeting.py`` decides from what all have written which world forms, and who has to come back.
* ``world_size.py`` decides how long the others wait before they continue with fewer nodes, or with more.
* ``meeting_store.py`` writes and reads that in Redis, signed with the run's key.
* ``attendance.py`` keeps the record of this node fresh in a thread, and holds what it saw last.
* ``world_store.py`` serves or joins the store of the world, where all members meet before the world counts.
* ``rendezvous.py`` is what torchrun calls, and ``rendezvous_settings.py`` reads its arguments.

Every torchrun on the machine loads this module, whatever its backend. So nothing is imported here before it is needed.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters


def creator() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """Return what makes the rendezvous of a job. torchrun asks for it in every job."""
    return _create


def _create(parameters: "RendezvousParameters") -> "RendezvousHandler":
    from holdfast_torchrun.rendezvous import create_rendezvous

    return create_rendezvous(parameters)
