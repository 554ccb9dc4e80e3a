"""What crosses a process boundary in Holdfast: messages, Redis keys, shared-memory layouts. Nothing here acts.

The way of a number, from the line that reports it to the page that Prometheus scrapes:

1. ``hooks.report(loss=...)`` (``holdfast_hooks/hooks.py``) stores the number in the step's record
   (``telemetry/timeline.py``). That is all that the training thread pays: a store and, at the end of the step, one
   append. ``step_loop.py`` ends the step, and ``sidecar.py`` appends the record to a bounded queue.
2. ``session/reporter.py`` is a thread of its own. Five times a second it has ``telemetry/report_builder.py`` make a
   ``Report`` of what is there, and ``session/link.py`` sends it on the rank's stream.
3. ``holdfast_agent/session.py`` receives it, ``rank_messages.py`` has ``reports/message_checks.py`` drop what cannot be
   true, and the rank's ``processes/rank.py`` keeps its progress.
4. ``holdfast_agent/node.py`` folds records of one step of all its ranks (``reports/summaries.py``): sums, not lists, so
   that a node of eight ranks sends as much as a node of one. The summary is an event, because it must not be lost.
   ``reports/store_link.py`` appends it to the stream of the run, and replaces the node's key (``keys.py``).
5. The leader's ``holdfast_daemon/leadership/run_shell.py`` reads both through ``run_store.py``.
   ``validation/intake.py`` with ``message_rules.py`` and ``node_rules.py`` refuses what another version, or another
   process, may have written.
6. ``holdfast_core/coordinator.py`` runs a tick. ``absorb.py`` merges the summaries of all nodes until a step is
   complete, and ``step_numbers.py`` hands the step to the detectors and into the state (``model.py``).
7. ``holdfast_daemon/run_metrics.py`` reads the newest state at each scrape, in the families that
   ``metrics/run_families.py`` declares once, and ``holdfast_base/metrics_server.py`` serves them.

Nothing on the way waits for what comes after it: queues are bounded, and a slow reader costs its own numbers only.
"""
