/** One run: what is wrong, how far it is, its curves, its time, and what an operator can do. */

import { runPath } from "../api.js";
import { ChartsPanel } from "../charts/charts_panel.js";
import { useLostConnection } from "../connection.js";
import { duration, percent, whole } from "../format.js";
import { html, useCallback, useRef } from "../html.js";
import { Acknowledge, Actions } from "../parts/actions.js";
import { Badge } from "../parts/badge.js";
import { Logged } from "../parts/logged.js";
import { Numbers } from "../parts/numbers.js";
import { Loading, Problem } from "../parts/states.js";
import { productiveRatio, TimeUse } from "../parts/time_use.js";
import { Verdict } from "../parts/verdict.js";
import { IncidentList } from "./incidents.js";
import { useStream } from "../use_live.js";
import { IncidentWaits } from "../waits/incident_waits.js";

/** Shows a run and follows it. */
export function RunPage({ run, session }) {
  const listeners = useRef(new Set());
  const subscribe = useCallback((handle) => {
    listeners.current.add(handle);
    return () => listeners.current.delete(handle);
  }, []);
  const steps = (event) => listeners.current.forEach((handle) => handle(event));
  const { data: frame, gone } = useStream(runPath(run, "stream"), { others: { steps } });
  const lost = useLostConnection();
  if (frame === null) return html`<${Loading} what=${`the run ${run}`} />`;
  return html`
    ${gone && html`<${Problem} title="The daemon no longer knows this run" text="What follows is the last known state." />`}
    <section class="state" aria-label="State">
      <p class="state-line"><${Badge} health=${frame.health} text=${frame.state} />
        <span>${frame.state_text}</span></p>
      ${!frame.store_up && html`<p class="attention-text">The daemon cannot reach its store: what follows may be old.</p>`}
      ${(frame.notes ?? []).map((note) => html`<p class="quiet" key=${note}>${note}</p>`)}
    </section>
    ${frame.attention && html`<${Verdict} run=${run} health=${frame.health === "bad" ? "bad" : "attention"}
      attention=${frame.attention}>
      ${frame.attention.incident && html`<${IncidentWaits} run=${run} incident=${frame.attention.incident}
        version=${frame.attention.what} />`}
      ${frame.attention.can_be_acknowledged && html`<${Acknowledge} run=${run} incident=${frame.attention.incident}
        session=${session} />`}
    <//>`}
    <${Progress} frame=${frame} />
    <${ChartsPanel} run=${run} incidents=${frame.incidents_list ?? []} nonfinite=${frame.nonfinite}
      logged=${(frame.logged ?? []).map(({ name }) => name)} subscribe=${subscribe} />
    <div class="columns">
      <section aria-label="Goodput"><h2>Goodput <span class="sub">${percent(productiveRatio(frame.time_use_s))}</span></h2>
        <${TimeUse} use=${frame.time_use_s} wallS=${frame.wall_s} /></section>
      <section aria-label="Numbers"><h2>Numbers</h2><${Numbers} frame=${frame} /></section>
    </div>
    <${Logged} frame=${frame} />
    <section aria-label="Actions"><h2>Actions</h2><${Actions} frame=${frame} session=${session}
      lost=${lost !== null} /></section>
    <section aria-label="Incidents"><h2>Incidents</h2>
      <${IncidentList} run=${run} incidents=${frame.incidents_list ?? []} /></section>`;
}

function Progress({ frame }) {
  const { ratio = null, left_s: left = null } = frame.progress ?? {};
  // Steps are numbered from 0: after step 259 of 260 all are done.
  const done = frame.steps_until ? `${whole(frame.step + 1)} of ${whole(frame.steps_until)} steps` : `step ${whole(frame.step)}`;
  return html`<section class="progress-line" aria-label="Progress">
    <span class="big">${frame.step < 0 ? "no step yet" : done}</span>
    ${ratio !== null && html`<progress max="1" value=${ratio} aria-label="Progress of the run" /> <span>${percent(ratio)}</span>`}
    ${left !== null && html`<span class="quiet">about ${duration(left)} left</span>`}
    ${frame.outcome && frame.outcome !== frame.state_text && html`<span>${frame.outcome}</span>`}
  </section>`;
}
