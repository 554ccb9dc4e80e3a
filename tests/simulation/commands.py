"""The commands of scenarios. Each is a function of the world, the command's words and its name=value pairs."""

from collections.abc import Callable, Mapping, Sequence

from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.simulation.story_world import StoryWorld, tick_s
from tests.support.replica_nodes import offer, replicate

Command = Callable[[StoryWorld, Sequence[str], Mapping[str, str]], None]

_MODES = {"act": store.MODE_ACT, "observe": store.MODE_OBSERVE}
_PRESETS = {"fast": store.PRESET_FAST, "default": store.PRESET_DEFAULT, "patient": store.PRESET_PATIENT}
_ACTIVITIES = {
    "lock": common.ACTIVITY_LOCK,
    "user_code": common.ACTIVITY_USER_CODE,
    "collective": common.ACTIVITY_COLLECTIVE,
}
_PHASES = {
    "data": common.PHASE_DATA,
    "forward_backward": common.PHASE_FORWARD_BACKWARD,
    "checkpoint": common.PHASE_CHECKPOINT,
    "eval": common.PHASE_EVAL,
}
_LOST_PEER = "Traceback\nRuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:8070"


def begin(options: Mapping[str, str]) -> StoryWorld:
    """Return the world that the command ``run`` asks for, before its first tick."""
    world = StoryWorld(
        nodes=int(options.get("nodes", "1")),
        ranks_per_node=int(options.get("ranks", "4")),
        mode=_MODES[options.get("mode", "act")],
        preset=_PRESETS[options.get("preset", "fast")],
        checkpoints=_numbers(options.get("checkpoints", "")),
        restart_patience=float(options.get("patience", "1")),
    )
    if "replicate_every" in options:
        world.spec.replicate_every_s, world.spec.snapshot_every = float(options["replicate_every"]), 5
        for node in world.node_states.values():
            offer(node)
    return world


def train(world: StoryWorld, words: Sequence[str], options: Mapping[str, str]) -> None:
    """train 5 [losses=2.0,2.1]: all ranks finish steps of 0.3 s each."""
    losses = [float(loss) for loss in options.get("losses", "").split(",") if loss]
    world.train_again(int(words[0]) if words else 0, losses)


def wait(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """wait 2.5: seconds pass in which no rank moves."""
    seconds = float(words[0])
    for _tick in range(round(seconds / tick_s(seconds))):
        world.tick(seconds=tick_s(seconds))


def until(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """until running: seconds pass until the run is in a phase."""
    world.until(words[0], ticks=3000)


def phase(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """phase eval 12: all ranks are in a phase for that many seconds."""
    world.spend(_PHASES[words[0]], float(words[1]))


def hang(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """hang 1: all other ranks enter the next collective."""
    world.hang(int(words[0]))


def rank(world: StoryWorld, words: Sequence[str], options: Mapping[str, str]) -> None:
    """rank 1 [process=T] [thread=R] [phase=data] [silent=yes]: the state that a rank shows from now on."""
    state = world.rank(int(words[0]))
    state.device = "cpu"
    state.process_state = options.get("process", state.process_state)
    state.thread_state = options.get("thread", state.thread_state)
    if "phase" in options:
        state.progress.phase = _PHASES[options["phase"]]
    if "silent" in options:
        world.silent.add(state.rank)
    if "workers" in options:
        state.workers = int(options["workers"])
    state.traced = state.process_state == "t"


def moves(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """moves 0,1: something moves in the process trees of ranks from now on; "moves none": nothing does."""
    world.moving = set() if words[0] == "none" else set(_numbers(words[0]))


def stop_all(world: StoryWorld, _words: Sequence[str], _: Mapping[str, str]) -> None:
    """stop_all: a signal stops all ranks."""
    for number in range(world.world_size):
        world.rank(number).process_state = "T"


def resume(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """resume 3,0: ranks that were stopped continue; agents count their stalls anew."""
    for number in _numbers(words[0]):
        world.rank(number).process_state = "S"
        world.rank(number).stalled_s = 0.0


def leave(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """leave 0,1: ranks have left training, and their processes are still there."""
    for number in _numbers(words[0]):
        world.rank(number).left_training = True
        world.rank(number).progress.phase = common.PHASE_IDLE


def stack(world: StoryWorld, words: Sequence[str], options: Mapping[str, str]) -> None:
    """stack 1 activity=lock frame='step (train.py:7)': the content of a rank's stack from now on."""
    number = int(words[0])
    summary = store.StackSummary(rank=number, frame=options.get("frame", ""), activity=_ACTIVITIES[options["activity"]])
    world.stacks[number] = summary


def group(world: StoryWorld, words: Sequence[str], options: Mapping[str, str]) -> None:
    """group tp ranks=0,1 enqueued=5,4 completed=4: the progress of ranks in a group."""
    enqueued = dict(zip(_numbers(options["ranks"]), _numbers(options["enqueued"]), strict=True))
    world.set_group(words[0], enqueued, int(options["completed"]))


def channel(world: StoryWorld, words: Sequence[str], options: Mapping[str, str]) -> None:
    """channel 0 1 sent=4 posted=4 received=3: messages from one rank to another."""
    numbers = {name: int(options[name]) for name in ("sent", "posted", "received")}
    world.set_channel(int(words[0]), int(words[1]), **numbers)


def call(world: StoryWorld, words: Sequence[str], options: Mapping[str, str]) -> None:
    """call 0,1 group=0 seq=5 op=gloo:all_reduce [sizes=...]: the name that recorders give a pending call of ranks."""
    for number in _numbers(words[0]):
        pending = world.rank(number).pending.add(group=options["group"], seq=int(options["seq"]), op=options["op"])
        pending.sizes = options.get("sizes", "")


def end(world: StoryWorld, words: Sequence[str], options: Mapping[str, str]) -> None:
    """end 2 [signal=9] [code=1 says='ValueError: x'] [oom=yes] [finished=yes]: a rank ends (finished: hooks closed)."""
    how: dict[str, object] = {name: int(options[name]) for name in ("signal", "code") if name in options}
    if "says" in options:
        how["last_words"] = f"Traceback\n{options['says']}"
    if "finished" in options:
        how["finished"] = True
    if "oom" in options:
        how |= {"out_of_memory": True, "kernel_line": "Out of memory: Killed process 102 (python)"}
    world.end(int(words[0]), **how)


def lose_peer(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """lose_peer 0,1: ranks fail because the connection to another is gone."""
    for number in _numbers(words[0]):
        world.end(number, code=1, last_words=_LOST_PEER)


def lose_node(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """lose_node node1: a node's lease runs out."""
    world.node_states.pop(words[0])


def spare(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """spare node2: a node that has no part in the run is ready."""
    world.node_states[words[0]] = store.NodeState(
        run="r", node=words[0], ready=True, stopped=True, instance="i", checkpoints=world.checkpoints
    )
    if world.spec.replicate_every_s:
        offer(world.node_states[words[0]])


def replicated(world: StoryWorld, _words: Sequence[str], _: Mapping[str, str]) -> None:
    """replicated: all nodes have made the replica snapshots that were commanded, and their partners have them."""
    replicate(world)


def leader_lost(world: StoryWorld, _words: Sequence[str], _: Mapping[str, str]) -> None:
    """leader_lost: a standby takes over from the record in the store."""
    world.lose_leader()


def store_emptied(world: StoryWorld, _words: Sequence[str], _: Mapping[str, str]) -> None:
    """store_emptied: a new leader finds no record."""
    world.empty_store()


def committed(world: StoryWorld, words: Sequence[str], _: Mapping[str, str]) -> None:
    """committed 4: a checkpoint is complete."""
    step = int(words[0])
    for node in world.node_states.values():
        node.checkpoints.append(step)
    world.events.append(store.Event(node="node0", checkpoint_committed=store.CheckpointCommitted(step=step)))


def cannot_start(world: StoryWorld, words: Sequence[str], options: Mapping[str, str]) -> None:
    """cannot_start node0 says='no memory': a node has not been able to start the newest generation."""
    node = world.node_states[words[0]]
    node.failed_generation, node.failure = world.state.record.generation, options["says"]
    node.replicas.unusable_generation = node.failed_generation
    node.generation, node.stopped = node.failed_generation - 1, True
    del node.ranks[:]


def unreadable(world: StoryWorld, words: Sequence[str], options: Mapping[str, str]) -> None:
    """unreadable 39 says='digest differs': a checkpoint does not read back."""
    event = store.CheckpointUnreadable(step=int(words[0]), reason=options["says"])
    world.events.append(store.Event(node="node0", checkpoint_unreadable=event))
    world.tick()


def nonfinite(world: StoryWorld, words: Sequence[str], options: Mapping[str, str]) -> None:
    """nonfinite 7 rank=2 module=layers.1: the numbers of a step are not finite; rank and module name the origin."""
    summary = store.StepSummary(step=int(words[0]), generation=world.state.record.generation)
    summary.nonfinite.add(rank=0, quantity="grad_norm")
    summary.nonfinite.add(rank=int(options["rank"]), quantity="gradient", module=options["module"], unix_s=world.now)
    world.events.append(store.Event(node="node0", generation=summary.generation, step_summary=summary))
    world.tick()


COMMANDS: dict[str, Command] = {
    command.__name__: command
    for command in (
        train, wait, until, phase, hang, rank, moves, stop_all, resume, leave, stack, group, channel, call, end,
        lose_peer, lose_node, spare, replicated,
        leader_lost, store_emptied, committed, cannot_start, unreadable, nonfinite,
    )
}  # fmt: skip


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
