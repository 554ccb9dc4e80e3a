"""Activities of ranks in their pauses, by name. Each function returns when the pause is over."""

from collections.abc import Callable

from benchmarks.odd_runs.scene import Scene

from . import collecting, computing, files, holding, loading, network, processes, still, uploads

Activity = Callable[[Scene], None]

ACTIVITIES: dict[str, Activity] = {
    "sleep": still.sleep,
    "sleep with the interpreter lock": still.sleep_holding_the_lock,
    "wait for a person": still.wait_for_a_person,
    "sleep in a child": still.sleep_in_a_child,
    "growing pauses": still.pause_longer_each_time,
    "look for a file": still.look_for_a_file,
    "loop": computing.loop,
    "multiply": computing.multiply,
    "closure": computing.closure,
    "micro steps": computing.micro_steps,
    "thread pool": computing.thread_pool,
    "lock": computing.wait_for_a_lock,
    "spin": computing.spin,
    "sum": holding.sum_once,
    "pickle": holding.pickle_much,
    "regex": holding.match,
    "sort": holding.sort,
    "power": holding.power,
    "collect": collecting.collect,
    "allocate": collecting.allocate,
    "compilers": processes.compilers,
    "process pool": processes.process_pool,
    "forks": processes.forks,
    "save": files.save,
    "save in a thread": files.save_in_a_thread,
    "save through a pipe": files.save_through_a_pipe,
    "small files": files.small_files,
    "reread": files.reread,
    "read": network.read,
    "read until it stops": network.read_until_it_stops,
    "read a fifo": network.read_fifo,
    "read a fifo until it stops": network.read_fifo_until_it_stops,
    "download": network.download,
    "retry": network.retry,
    "upload": uploads.upload,
    "upload until it stops": uploads.upload_until_it_stops,
    "print": uploads.print_much,
    "print until it stops": uploads.print_until_it_stops,
    "loader computes": loading.worker_computes,
    "loader sleeps": loading.worker_sleeps,
    "loader reads": loading.worker_reads,
    "loader starts": loading.workers_start,
    "loader is stopped": loading.worker_is_stopped,
}
