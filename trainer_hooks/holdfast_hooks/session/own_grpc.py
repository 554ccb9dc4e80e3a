"""Imports gRPC without its fork handlers, which cannot work while the session of a rank is open.

gRPC's handlers pause its threads around each fork(). They give up if a thread is inside gRPC, and print a line to
stderr. The thread of an open session always is. So each worker of a DataLoader would give such a line.

gRPC's C core reads GRPC_ENABLE_FORK_SUPPORT once, while ``grpc`` is imported, for all of the process. So the variable
is set for the time of that import only. It stays as it is if the user has set it, or if the script has imported grpc
before: then it is too late, and the handlers are the script's own.
"""

import os
import sys

_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
_is_free = "grpc" not in sys.modules and _VARIABLE not in os.environ

if _is_free:
    os.environ[_VARIABLE] = "0"
try:
    import grpc
finally:
    if _is_free:
        os.environ.pop(_VARIABLE, None)

__all__ = ["grpc"]
