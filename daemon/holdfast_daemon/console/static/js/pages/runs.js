/** All runs that the daemon knows, those that need attention first. Below them: those that have ended before. */

import { counted, figure, percent, short, whole } from "../format.js";
import { html } from "../html.js";
import { Badge } from "../parts/badge.js";
import { Empty, Fetched, Loading, Time } from "../parts/states.js";
import { runHref } from "../router.js";
import { useJson, useStream } from "../use_live.js";

const MOST_PAST = 50;
const ORDER = { bad: 0, attention: 1, unknown: 2, ok: 3, ended: 4 };

/** Sorts runs: what is bad first, then the newest. */
export function byAttention(runs) {
  return [...runs].sort((a, b) => (ORDER[a.health] ?? 2) - (ORDER[b.health] ?? 2)
    || b.created_unix_s - a.created_unix_s || a.run.localeCompare(b.run));
}

/** Shows the list of runs and follows it. */
export function RunsPage() {
  const { data } = useStream("api/stream", { whole: "runs" });
  return html`<h1>Runs</h1>
    ${data === null ? html`<${Loading} what="the runs" />` : html`<${RunTable} runs=${byAttention(data.runs)} />
      <${PastRuns} version=${data.runs.map(({ run, created_unix_s: created }) => `${run} ${created}`).join(" ")} />`}`;
}

/** Shows the runs that have ended before; `version` changes with the runs that the daemon knows. */
function PastRuns({ version }) {
  const answer = useJson("api/past", version);
  return html`<${Fetched} of=${answer} what="the past runs">${({ runs, directory }) => {
    const past = runs.filter((start) => !start.current);
    return past.length > 0 && html`<section class="past-runs" aria-label="Ended before"><h2>Ended before</h2>
      <table>
        <caption class="hidden">Runs that have ended before, the newest first</caption>
        <thead><tr>
          <th scope="col">Run</th><th scope="col">End</th><th scope="col" class="num mid">Steps</th>
          <th scope="col" class="wide">Created</th><th scope="col">Ended</th>
        </tr></thead>
        <tbody>${past.slice(0, MOST_PAST).map((start) => html`<${PastRow} key=${`${start.run} ${start.instance}`}
          start=${start} />`)}</tbody>
      </table>
      <p class="quiet">${past.length > MOST_PAST && `And ${counted(past.length - MOST_PAST, "older run")}. `}Run
        ${" "}<code>holdfast report</code> on the daemon's machine, with <code>--directory ${directory}</code>. It shows
        the newest run of a name. “Compare with” on the page of a run shows the curves of all.</p>
    </section>`;
  }}<//>`;
}

function PastRow({ start }) {
  return html`<tr>
    <th scope="row">${start.run}${start.end_text && html`<span class="line">${start.end_text}</span>`}
      ${start.reported && html`<span class="line"><code>holdfast report ${start.run}</code></span>`}</th>
    <td><${Badge} health=${start.health} text=${start.end} /></td>
    <td class="num mid">${whole(start.steps)}</td>
    <td class="wide"><${Time} unixS=${start.created_unix_s} /></td>
    <td><${Time} unixS=${start.ended_unix_s} /></td>
  </tr>`;
}

function RunTable({ runs }) {
  if (runs.length === 0) {
    return html`<${Empty}>No run is known to this daemon. Start one with <code>holdfast run</code>, or watch one with
      <code>holdfast observe</code>: it appears here by itself.<//>`;
  }
  return html`<table class="runs">
    <caption class="hidden">Runs, those that need attention first</caption>
    <thead><tr>
      <th scope="col">Run</th><th scope="col">State</th><th scope="col" class="num">Step</th>
      <th scope="col" class="num mid">Loss</th><th scope="col" class="num wide">Tokens/s</th>
      <th scope="col" class="num wide">Goodput</th><th scope="col" class="num wide">Ranks</th>
      <th scope="col" class="wide">Created</th>
    </tr></thead>
    <tbody>${runs.map((run) => html`<${RunRow} key=${run.run} run=${run} />`)}</tbody>
  </table>`;
}

function RunRow({ run }) {
  const loud = run.health === "bad" || run.health === "attention";
  return html`<tr class=${run.health}>
    <th scope="row">
      <a href=${runHref(run.run)}>${run.run}</a>
      ${run.verdict && html`<span class=${`line ${loud ? run.health : ""}`}>${run.verdict}</span>`}
      ${(!run.verdict || run.health !== "bad") && html`<span class="line">${run.state_text}</span>`}
      ${run.restarts > 0 && html`<span class="line">${counted(run.restarts, "restart")}</span>`}
    </th>
    <td><${Badge} health=${run.health} text=${run.state} /></td>
    <td class="num">${run.step < 0 ? "–" : whole(run.steps_until ? run.step + 1 : run.step)}
      ${run.steps_until && html`<span class="line">of ${whole(run.steps_until)} steps</span>
        <progress max=${run.steps_until} value=${run.step + 1} aria-label=${`Progress of ${run.run}`} />`}</td>
    <td class="num mid">${run.nonfinite.includes("loss")
      ? html`<span class="bad-text">not finite</span>` : figure(run.loss)}</td>
    <td class="num wide">${short(run.tokens_per_s)}</td>
    <td class="num wide">${percent(run.goodput_ratio)}</td>
    <td class="num wide">${whole(run.ranks)}</td>
    <td class="wide"><${Time} unixS=${run.created_unix_s} /></td>
  </tr>`;
}
