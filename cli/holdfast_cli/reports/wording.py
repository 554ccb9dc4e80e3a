"""Numbers and times of reports, as people read them."""


def duration(seconds: float) -> str:
    """Return a time span with two units at most."""
    if seconds < 1.0:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60.0:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def short_number(number: float) -> str:
    """Return a number with four digits, or all of a whole number."""
    return f"{number:,.0f}" if number == int(number) or abs(number) >= 10_000 else f"{number:.4g}"


def size(count: float) -> str:
    """Return a number of bytes in the binary unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024.0:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024.0
    return f"{count:.1f} TiB"
