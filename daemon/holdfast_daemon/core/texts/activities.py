"""What a rank without progress is seen to do, in a few words."""

from holdfast_proto.v1 import common_pb2 as common

_DOES = {
    common.ACTIVITY_STOPPED: "is stopped",
    common.ACTIVITY_DATA: "waits for data",
    common.ACTIVITY_USER_CODE: "runs code of its own",
    common.ACTIVITY_GIL_HELD: "holds its interpreter lock",
    common.ACTIVITY_LOCK: "waits for a lock",
    common.ACTIVITY_SYSTEM_CALL: "waits in a system call",
    common.ACTIVITY_COLLECTIVE: "waits in a call of torch.distributed",
}


def does(activity: "common.Activity") -> str:
    """Return the words for an activity: "is stopped"."""
    return _DOES.get(activity, "makes no progress")
