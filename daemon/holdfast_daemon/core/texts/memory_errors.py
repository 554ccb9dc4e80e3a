"""Recognises the exceptions of a rank that ran out of memory, and keeps the sizes that they name."""

import re

_DEVICE = re.compile(
    r"(?P<name>(?:\w+\.)*\w+): (?:(?:CUDA|HIP|XPU) out of memory\b|(?:CUDA|HIP) error: out of memory\b)"
)
_HOST = re.compile(r"(?P<name>(?:numpy\.(?:\w+\.)*_Array)?MemoryError)(?:: (?P<message>.*))?$")
_HOST_OF_TORCH = re.compile(r"(?P<name>RuntimeError): .*DefaultCPUAllocator: can't allocate memory\b")

_SIZE = r"(?P<size>\d[\d.]* (?:bytes|[KMGTP]iB))"
_TRIED = re.compile(rf"tried to allocate {_SIZE}", re.IGNORECASE)
_FREE = re.compile(
    r"(?P<device>[A-Z]+ \d+) has a total capaci?ty of (?P<total>\d[\d.]* \w+) of which (?P<free>\d[\d.]* \w+) is free"
)
_USED = re.compile(rf"this process has {_SIZE} memory in use")


def ran_out_of_memory(said: str) -> str:
    """Return what happened if ``said``, the line of an exception, is about memory that ran out; else ``""``.

    For example ``ran out of GPU memory (torch.OutOfMemoryError: it tried to allocate 20.00 GiB; 3.20 GiB of 79.15 GiB
    were free on GPU 0)``.
    """
    if device := _DEVICE.match(said):
        return f"ran out of GPU memory ({_with_sizes(device['name'], _device_sizes(said))})"
    if torch := _HOST_OF_TORCH.match(said):
        return f"ran out of host memory ({_with_sizes(torch['name'], _tried(said))})"
    if host := _HOST.match(said):
        return f"ran out of host memory ({_with_sizes(host['name'].rpartition('.')[2], [host['message'] or ''])})"
    return ""


def _with_sizes(name: str, sizes: list[str]) -> str:
    known = "; ".join(filter(None, sizes))
    return f"{name}: {known}" if known else name


def _device_sizes(said: str) -> list[str]:
    sizes = _tried(said)
    if free := _FREE.search(said):
        sizes.append(f"{free['free']} of {free['total']} were free on {free['device']}")
    if used := _USED.search(said):
        sizes.append(f"it had {used['size']} in use")
    return sizes


def _tried(said: str) -> list[str]:
    tried = _TRIED.search(said)
    return [f"it tried to allocate {tried['size']}"] if tried else []
