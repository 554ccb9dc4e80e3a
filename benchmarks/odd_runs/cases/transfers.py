"""Cases in which the rank reads, writes, downloads or uploads while the script marks no phase."""

from benchmarks.odd_runs.case import OddCase, Twin
from benchmarks.odd_runs.patience import Sign


def _silent(activity: str) -> Twin:
    """Return a twin whose server falls silent, so that nothing moves any more."""
    return Twin(activity=activity, sign=Sign.LIKELY, from_last_move=True)


FILES = (
    OddCase(name="torch.save, rank 0", activity="save", by=(0,), waiters="barrier", sign=Sign.COMPUTING, lasts_s=6.0),
    OddCase(
        name="torch.save for long, rank 0",
        activity="save",
        by=(0,),
        waiters="barrier",
        sign=Sign.COMPUTING,
        lasts_s=14.0,
    ),
    OddCase(name="torch.save, all", activity="save", sign=Sign.COMPUTING, lasts_s=5.0),
    OddCase(name="torch.save in a thread", activity="save in a thread", by=(0,), sign=Sign.COMPUTING, lasts_s=5.0),
    OddCase(
        name="save through a child that compresses",
        activity="save through a pipe",
        by=(1,),
        sign=Sign.COMPUTING,
        lasts_s=5.0,
    ),
    OddCase(name="many small files", activity="small files", by=(0,), sign=Sign.COMPUTING, lasts_s=5.0),
    OddCase(name="a file is read slowly", activity="reread", by=(1,), sign=Sign.COMPUTING, lasts_s=5.0),
    OddCase(name="slow file server", activity="read", by=(1,), sign=Sign.COMPUTING, lasts_s=6.0),
    OddCase(
        name="slow file server stops",
        activity="read",
        by=(1,),
        sign=Sign.COMPUTING,
        lasts_s=5.0,
        twin=_silent("read until it stops"),
    ),
    OddCase(name="slow FIFO", activity="read a fifo", by=(0,), sign=Sign.COMPUTING, lasts_s=5.0),
    OddCase(
        name="slow FIFO stops",
        activity="read a fifo",
        by=(0,),
        sign=Sign.COMPUTING,
        lasts_s=5.0,
        twin=_silent("read a fifo until it stops"),
    ),
    OddCase(name="weights are read by all, in the middle", activity="read", sign=Sign.COMPUTING, lasts_s=6.0),
    OddCase(
        name="rank 0 downloads, others wait in a broadcast",
        activity="download",
        by=(0,),
        waiters="broadcast",
        sign=Sign.COMPUTING,
        lasts_s=6.0,
    ),
    OddCase(name="upload in the middle", activity="upload", by=(0,), sign=Sign.COMPUTING, lasts_s=6.0),
    OddCase(
        name="upload in the middle stops",
        activity="upload",
        by=(0,),
        sign=Sign.COMPUTING,
        lasts_s=5.0,
        twin=_silent("upload until it stops"),
    ),
    OddCase(name="log reader is slow", activity="print", by=(1,), sign=Sign.COMPUTING, lasts_s=6.0),
    OddCase(
        name="log reader stops",
        activity="print",
        by=(1,),
        sign=Sign.COMPUTING,
        lasts_s=5.0,
        twin=_silent("print until it stops"),
    ),
    OddCase(name="retries with sleeps", activity="retry", by=(0,), sign=Sign.COMPUTING, lasts_s=6.0),
)
