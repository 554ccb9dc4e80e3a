/** The charts of a run: one zoom, one cursor and one smoothing for all, and a second run to compare with. */

import { runPath } from "../api.js";
import { clock } from "../format.js";
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { runHref } from "../router.js";
import { isUnanswered, useJson } from "../use_live.js";
import { Chart } from "./chart.js";
import { appendSteps, between, carryOver, endsBad, MEMORY, QUANTITIES, readCurves } from "./curve_data.js";

const TITLES = { loss: "Loss", grad_norm: "Gradient norm", tokens_per_s: "Tokens per second", step_s: "Step time (s)",
  validation_loss: "Validation loss", learning_rate: "Learning rate", [MEMORY]: "Memory of the fullest rank (GiB)" };
// Many scripts report none of these: their charts are left out.
const RARE = ["validation_loss", "learning_rate"];
const LAST_STEPS = 200;
const POINTS = 1000;
// So many live steps make a curve uneven: it is fetched again, in even buckets.
const REFRESH_AFTER = 1000;
// Curves that no stream carries: memory, and what the script logs under names of its own.
const LOGGED = "logged:";
const OTHER_POINTS = 250;
const OTHER_EVERY_MS = 15000;
const MOST_LOGGED = 12;

/**
 * Shows the charts.
 * @param {{run: string, incidents: object[], nonfinite: string[], logged: string[],
 *     subscribe: (handle: (event: object) => void) => () => void}} props `nonfinite`: the quantities whose newest value
 *     is not finite, which a point that stands for several steps cannot tell. `logged`: the names under which the script
 *     logs numbers. `subscribe` hands over the `steps` events of
 *     the run's stream.
 */
export function ChartsPanel({ run, incidents, nonfinite, logged, subscribe }) {
  const [weight, setWeight] = useState(0.6);
  const [log, setLog] = useState(false);
  const [zoom, setZoom] = useState(null);
  const [otherRun, setOtherRun] = useState("");
  const [round, setRound] = useState(0);
  const { curves, version, error, none } = useCurves(run, zoom, `${round} ${incidents.length}`, subscribe,
    () => setRound((old) => old + 1));
  const [showsAll, setShowsAll] = useState(false);
  const others = [MEMORY, ...logged.slice(0, showsAll ? undefined : MOST_LOGGED).map((name) => LOGGED + name)];
  const otherNow = useOtherCurves(run, others, zoom);
  const past = useJson("api/past");
  const other = useJson(otherRun ? otherPath(otherRun, zoom) : null);
  const otherCurves = useMemo(() => (other.data ? readCurves(other.data) : null), [other.data]);
  const marks = useMemo(() => marksOf(run, incidents), [run, incidents]);

  const ends = QUANTITIES.flatMap((name) => [curves[name].step[0], curves[name].step.at(-1)].filter((at) => at !== undefined));
  const newest = Math.max(0, ...ends);
  // Marks must fit too: an incident interrupts the step after the newest one.
  const marked = marks.map(({ step }) => step);
  const all = { min: Math.min(...ends, ...marked, newest), max: Math.max(newest, ...marked) };
  const lastSteps = () => setZoom({ min: Math.max(newest - LAST_STEPS, 0), max: newest });
  const shown = [...QUANTITIES.filter((name) => !RARE.includes(name)), ...RARE.filter((name) => curves[name].step.length > 0),
    ...others.filter((name) => otherNow[name].step.length > 0)];
  const curveOf = (name) => curves[name] ?? otherNow[name];
  return html`<section class="charts" aria-label="Curves">
    <div class="bar">
      <h2>Curves</h2>
      <label>Smoothing <input type="range" min="0" max="0.98" step="0.02" value=${weight}
        onInput=${(event) => setWeight(Number(event.target.value))} /> <output>${weight.toFixed(2)}</output></label>
      <label><input type="checkbox" checked=${log} onChange=${(event) => setLog(event.target.checked)} /> Log scale</label>
      <span class="group">
        <button type="button" aria-pressed=${zoom === null} onClick=${() => setZoom(null)}>Whole run</button>
        <button type="button" onClick=${lastSteps}>Last ${LAST_STEPS} steps</button>
      </span>
      <label>Compare with <select value=${otherRun} onChange=${(event) => setOtherRun(event.target.value)}>
        <option value="">no other run</option>
        ${(past.data?.runs ?? []).filter((item) => !(item.current && item.run === run)).map((item) => {
          const value = JSON.stringify([item.run, item.instance]);
          return html`<option key=${value} value=${value}>${item.run}, ${clock(item.created_unix_s)}</option>`;
        })}
      </select></label>
    </div>
    ${error && html`<p class="quiet">The history has no curves: ${error}. New steps appear as they arrive.</p>`}
    ${other.error && !isUnanswered(other) && html`<p class="quiet">The other run cannot be shown: ${other.error}.</p>`}
    ${otherRun && html`<p class="quiet"><span class="key own"></span> this run ${" "}
      <span class="key other"></span> the other run, dashed</p>`}
    <div class="chart-grid">
      ${shown.map((name) => html`<${Chart} key=${name} title=${TITLES[name] ?? name.slice(LOGGED.length)}
        curve=${curveOf(name)} isBad=${endsBad(curveOf(name)) || (zoom === null && nonfinite.includes(name))}
        other=${otherCurves?.[name] ?? null} weight=${weight} none=${none} log=${log && name.endsWith("loss")}
        isCut=${name === "step_s"} version=${version}
        low=${(zoom ?? all).min} high=${(zoom ?? all).max} onZoom=${(range) => setZoom(range && rounded(range))} marks=${marks} />`)}
    </div>
    ${logged.length > MOST_LOGGED && html`<p><button type="button" onClick=${() => setShowsAll(!showsAll)}>
      ${showsAll ? "Show fewer curves" : `Show all ${logged.length} names that the script logs`}</button></p>`}
    <p class="quiet">Drag over a chart to zoom in all of them; double-click to see the whole run. Marks with ! are
      incidents. The light curve has the values as they are.</p>
  </section>`;
}

function useCurves(run, zoom, round, subscribe, onCrowded) {
  const path = `${runPath(run, "curves")}?names=${QUANTITIES.join(",")}&points=${POINTS}`
    + (zoom ? `&since=${zoom.min}&until=${zoom.max}` : "");
  const answer = useJson(path, round);
  const [version, setVersion] = useState(0);
  const whole = useRef(readCurves(null));
  const added = useRef(0);
  const crowded = useRef(onCrowded);
  crowded.current = onCrowded;
  const fetched = useMemo(() => readCurves(answer.data), [answer.data]);
  if (!zoom && answer.data && whole.current.answer !== answer.data) {
    carryOver(fetched, whole.current);
    whole.current = Object.assign(fetched, { answer: answer.data });
    added.current = 0;
  }
  useEffect(() => subscribe((event) => {
    appendSteps(whole.current, event);
    added.current += event.rows.length;
    if (added.current > REFRESH_AFTER) crowded.current();
    setVersion((old) => old + 1);
  }), [subscribe]);
  let curves = whole.current;
  if (zoom) {
    curves = answer.data ? fetched : Object.fromEntries(
      QUANTITIES.map((name) => [name, between(whole.current[name], zoom.min, zoom.max)]));
  }
  return { curves, version, error: answer.data || isUnanswered(answer) ? "" : answer.error, none: noneWords(answer) };
}

function useOtherCurves(run, names, zoom) {
  const [round, setRound] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && setRound((old) => old + 1), OTHER_EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  const own = names.filter((name) => name.startsWith(LOGGED));
  const path = `${runPath(run, "curves")}?names=${MEMORY}&points=${OTHER_POINTS}`
    + own.map((name) => `&logged=${encodeURIComponent(name.slice(LOGGED.length))}`).join("")
    + (zoom ? `&since=${zoom.min}&until=${zoom.max}` : "");
  const { data } = useJson(path, round);
  const newest = useRef(null);
  if (data !== null) newest.current = data; // the old curves stay until those of another zoom are there
  return useMemo(() => readCurves(newest.current, names), [newest.current, names.length]);
}

function noneWords(answer) {
  if (isUnanswered(answer)) return "not loaded";
  return !answer.data && !answer.error ? "loading …" : "no values yet";
}

function rounded(range) {
  const min = Math.max(Math.floor(range.min), 0);
  return { min, max: Math.max(Math.ceil(range.max), min + 1) };
}

function otherPath(value, zoom) {
  const [run, instance] = JSON.parse(value);
  return `${runPath(run, "curves")}?names=${QUANTITIES.join(",")}&points=${POINTS}&instance=${encodeURIComponent(instance)}`
    + (zoom ? `&since=${zoom.min}&until=${zoom.max}` : "");
}

// Incidents of one step share a mark: it names them all and opens the first.
function marksOf(run, incidents) {
  const byStep = new Map();
  for (const incident of incidents) {
    if (incident.step === null || incident.step === undefined || incident.step < 0) continue;
    const known = byStep.get(incident.step);
    if (known) known.text += `; ${incident.what}`;
    else byStep.set(incident.step, { step: incident.step, text: incident.what, href: runHref(run, "incidents", incident.id) });
  }
  return [...byStep.values()];
}
