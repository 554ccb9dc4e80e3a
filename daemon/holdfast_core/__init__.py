"""The part of the coordinator that decides: no I/O, no clock, no threads, no randomness.

It is one function, ``coordinator.step(state, now, observation) -> (state, actions)``. The daemon's shell calls it about
ten times a second and carries the actions out. ``holdfast replay`` calls it with a recording and gets the same verdict.
``holdfast analyze`` and ``holdfast spikes`` use parts of it on files.

This page tells the story of one hang, from the report that shows it to the restart that ends it, with the files that it
passes. Read it before you read them. The numbers are those of the preset ``default``.

The run
-------

Eight ranks on two nodes train in mode ``act``. In step 120, rank 3 enters its forward pass and never comes back: a
lock of the user's code is held by a thread that has ended. The other seven ranks enter the all-reduce of their
gradients and wait in it.

The reports
-----------

Nothing is sent because something is wrong. Every rank reports five times a second what it does, and the hang shows in
what no longer changes.

1. ``holdfast_hooks/telemetry/timeline.py`` keeps step and phase. ``progress/progress_poll.py`` reads two counters of
   each process group: calls enqueued, and calls completed. ``session/reporter.py`` sends them to the agent.
2. ``holdfast_agent/session.py`` takes the report in, ``reports/message_checks.py`` refuses what cannot be true, and
   ``processes/rank.py`` keeps it. The agent counts ``stalled_s``, the seconds in which a rank's report has not changed.
   It counts them itself, and only while it runs: a node that was asleep does not look like a hung rank.
3. ``holdfast_agent/node.py`` folds all ranks of the node into one ``NodeState``, and ``reports/store_link.py`` puts it
   under the node's key in Redis.
4. ``holdfast_daemon/leadership/run_shell.py`` reads all keys of the run in the leader's tick, and
   ``validation/intake.py`` with ``validation/node_rules.py`` refuses what is damaged. The rest is the ``Observation``.

The tick
--------

5. ``coordinator.step`` makes a ``Tick`` (``tick.py``) of the state (``model.py``). Every edit in a tick replaces the
   state, so the old one stays whole: a tick that raises is tried again, and a recording needs no copy.
6. ``absorb.py`` takes the observation in. ``accounting/ledger.py`` notes what the ranks were seen to do, so that the
   run's wall time can be accounted for later. Then the handler of the phase runs: ``recovery/lifecycle.py``, here
   ``running``.

The suspicion, after 3.5 s
--------------------------

7. ``recovery/suspicion.py`` asks the detectors with 0.7 of the deadlines. Each deadline is learned from the run itself
   (``deadlines.py``): three times the 99th percentile of the last 128 durations, and at least 5 s.
8. The suspicion is counted and not shown. It has a use: evidence is fresh now. So ``GatherEvidence`` goes to the nodes
   (``recovery/evidence_ranks.py`` says to which, and for which ranks). The newest snapshot that all ranks hold is
   written as a checkpoint (``checkpointing/checkpoint_commands.py``). A rank that hangs takes no
   new snapshot, but the last one is good.
9. ``holdfast_agent/commands/command_runner.py`` has the evidence gathered (``evidence/gathering.py``): the stacks of
   rank 3 and of one rank that waits for it, and the recorders of all. They come back as events, and ``evidence.py``
   adds to the verdict what they show.

The verdict, after 5 s
----------------------

10. ``detection.py`` shows every detector the same ``View`` (``detectors/view.py``): the ranks, which of them are late,
    and who waits for whom. A detector is a value. It returns its next state and its findings, so one that raises spoils
    nothing for the others. ``detectors/registry.py`` gives their order: the first that explains a stop wins.
11. Who waits for whom is a graph (``diagnosis/wait_for_graph.py``). Its nodes are ranks and the calls in which they
    meet. On hosts, ``diagnosis/hosts/host_counters.py`` reads it from the counters: a rank with a pending call at
    number 431 waits for each member that has not come to 431. On devices the host runs ahead and its counters prove
    nothing; there, ``diagnosis/devices/`` reads it from the recorders.
12. A hang spreads until every rank waits for another one. So the number of waiting ranks says nothing, and the question
    is where the graph ends. ``diagnosis/hosts/wait_graph.py`` finds the ends: a rank that waits for nobody and that
    others wait for (here rank 3), or a circle, which is a mismatch.
13. ``detectors/hangs/hang.py`` and ``root_ranks.py`` make the finding: kind ``hung_collective``, culprit rank 3, the
    call that it has not made, the ranks that wait. All of it is data. ``texts/render.py`` turns data into the line that
    people read, ``texts/hangs.py`` for this family. ``replay`` compares the data, so a better sentence changes nothing.

The patience
------------

14. ``recovery/response.py`` asks first whether only time confirms the finding. It does: the rank exists and does not
    move, and most that looks like this ends by itself. So ``recovery/standstills.py`` only reports it: an incident in
    state ``standstill`` (``incidents.py``), with evidence.
15. In every tick from now on, ``recovery/signs.py`` judges how certain the sign of a fault is, and
    ``recovery/restart_patience.py`` has the table of how long a sign must last. Rank 3 waits for a lock, nothing moves
    in its process tree, and certain waiters wait for it: the sign is *likely*, and must last 60 s. A rank that computed
    would get 600 s. A longer healthy stay in the same phase, once seen, raises both.
16. If rank 3 came back now, ``standstills.settle`` would resolve the incident, and the run would remember this kind of
    pause: the next one is reported only if it lasts twice as long. That is how a slow disk becomes no news.

The restart
-----------

17. After 60 s, ``response`` takes the standstill over into an open incident and enters the phase ``gathering``: one
    more round of evidence, for 20 s at most. ``recovery/second_fault.py`` names a rank that dies in the meantime.
18. ``lifecycle`` enters ``stopping`` and sends ``StopGeneration`` until no rank of the generation is left.
    ``holdfast_agent/rank_supervisor.py`` kills the ranks. None must survive: one rank of an old generation in a new
    group would train on the wrong state.
19. A node that is lost is replaced by a spare here (``lifecycle.replace_lost``). Then ``recovery/new_generation.py``
    asks ``checkpointing/restore_point.py`` for the newest state that *all* ranks can have: a snapshot in memory, a
    replica snapshot (``checkpointing/replicas.py``), else a checkpoint, else the seed. Never the seed if there are
    checkpoints that cannot be read just now.
20. ``StartGeneration`` goes out. The warm parent (``holdfast_agent/processes/warm_parent.py``) forks the ranks, whose
    imports are done. ``holdfast_hooks/restore/starting_point.py`` puts the state back, and training repeats the steps
    since.
21. When all ranks report a first step, ``lifecycle`` enters ``running`` and closes the incident as ``recovered``. A
    restart that brings no new step is counted. After three in a row for a certain sign the run has failed. After three
    for an uncertain one it is left as it is, because it may only be slow.

If something else fails in the middle
-------------------------------------

* The leader dies. What must outlive it is in the record (``CoordinatorState``) and in the incidents, and both are
  written before the actions of the tick are carried out. A new leader begins with the record, sees the states of the
  nodes, and is in the right phase. Detectors, deadlines and suspicions start anew: they learn again in seconds.
* A command is lost, or arrives twice. Every command is idempotent and is repeated until its effect is seen in the
  states of the nodes. No handler waits for an answer that could be lost with it.
* Redis is gone. No tick runs, no action leaves, and no rank notices. Agents keep their ranks, and hold their events
  until they can be sent.
* An agent dies. Its ranks train on, the next agent of the node adopts them, and until then the node is a missing one:
  nobody is judged whom its ranks might hold up.
* A detector raises. It is counted, the others go on, and its state stays as it was before the tick.
* The culprit dies while the evidence is gathered. That is a second fault, named in the same incident, and the restart
  that was under way answers both.

The same hang on GPUs
---------------------

Steps 7 to 13 differ in what is read, and in nothing else. The hosts of all eight ranks may stand in the same
``synchronize()``, because a host only enqueues what its device is to do. So all of them are late, no counter shows who
is missing, and the detector ``device_call`` asks the recorders that the suspicion has gathered.

* ``diagnosis/devices/call_reading.py`` reads the entries of one rank: what is pending, and how far each group is.
* ``contradictions.py`` leaves out a dump that others prove to be older. Dumps are not taken at one moment.
* ``shared_calls.py`` puts the members of each pending call together: who is in it, who has not come, who came to
  another call, and of whom nothing is known.
* ``cause_search.py`` follows the waits in the same graph to its ends, and names a rank only if nothing else is left. A
  kernel that runs long looks like a kernel that hangs: for a rank that may only compute, time decides, as on hosts.

Where else to look
------------------

* A rank that *dies* needs no patience: ``detectors/deaths/`` decides who died first and why.
* What the numbers show (loss, gradients, replicas) is judged step by step: ``step_numbers.py`` merges the nodes' sums,
  ``detectors/numbers/`` judges, ``recovery/bad_loss/loss_policy.py`` acts.
* A slow run is ``detectors/speed/``.
* A run that another launcher started is followed by ``recovery/observed.py``. Only ``recovery/hang_aborts.py`` acts.
* What every view shows of a run is in ``reading/``, so that no two views differ.
* Where the seconds of a run went is in ``accounting/``.

What holds everywhere
---------------------

* A state is never changed, only replaced. A handler may therefore fail at any line.
* Actions are the only way out. What the core wants known or done is in them, so a test reads them like a log.
* Time enters as ``now`` alone. A rule that needs a duration compares it with a time in the state.
* What is not known is not zero. A missing node makes hangs undecided, not impossible.
* When in doubt, report and wait. A wrong restart costs more trust than a late one.
"""
