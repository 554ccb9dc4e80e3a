/** The checkpoints of a run, by history. */

import { runPath } from "../api.js";
import { bytes, percent, whole } from "../format.js";
import { html } from "../html.js";
import { Empty, Fetched, Time } from "../parts/states.js";
import { useJson, useStream } from "../use_live.js";

/** Shows the checkpoints and follows them. */
export function CheckpointsPage({ run }) {
  const { data: frame } = useStream(runPath(run, "stream"));
  const version = JSON.stringify([frame?.newest_checkpoint, frame?.checkpoints]);
  const answer = useJson(runPath(run, "checkpoints"), version);
  return html`<${Fetched} of=${answer} what="the checkpoints">${(data) => html`
      ${data.location && html`<p class="place">Place: <code>${data.location}</code></p>`}
      ${data.note && html`<p class="quiet">${data.note}</p>`}
      ${data.histories.length === 0
        ? html`<${Empty}>No checkpoint is known yet.<//>`
        : data.histories.map((item) => html`<${History} key=${item.number} history=${item} />`)}`}<//>`;
}

function History({ history }) {
  const origin = history.parent === null || history.parent === undefined
    ? "" : `, from history ${history.parent} after step ${whole(history.parent_step)}`;
  const newestFirst = [...history.checkpoints].sort((a, b) => b.step - a.step);
  return html`<section aria-label=${`History ${history.number}`}>
    <h2>History ${history.number}<span class="sub">${origin}</span></h2>
    ${newestFirst.length === 0 ? html`<${Empty}>It has no checkpoint yet.<//>` : html`<table class="narrow">
      <caption class="hidden">Checkpoints of history ${history.number}, newest first</caption>
      <thead><tr><th scope="col">Step</th><th scope="col">Form</th><th scope="col" class="num">Size</th>
        <th scope="col" class="num wide">Share of the state</th><th scope="col" class="mid">Committed</th>
        <th scope="col">Kept</th><th scope="col">Loss</th><th scope="col" class="wide">Verified</th></tr></thead>
      <tbody>${newestFirst.map((item) => html`<tr key=${item.step}>
        <th scope="row">${whole(item.step)}</th>
        <td><span class=${`form ${item.form}`}>${item.form}</span>
          ${item.base_step !== null && html`<span class="line">to step ${whole(item.base_step)}</span>`}</td>
        <td class="num">${bytes(item.bytes)}</td>
        <td class="num wide">${item.raw_bytes > 0 ? percent(item.bytes / item.raw_bytes) : "–"}</td>
        <td class="mid"><${Time} unixS=${item.committed_unix_s} /></td>
        <td>${item.kept ? "kept" : "no"}</td>
        <td class=${item.suspect ? "bad-text" : ""}>${lossWords(item)}</td>
        <td class="wide">${{ true: "yes", false: "damaged" }[item.verified] ?? "not checked"}</td>
      </tr>`)}</tbody>
    </table>`}
  </section>`;
}

// What the losses after a checkpoint say of its state. Without its files nothing is known of that.
function lossWords({ proven, suspect }) {
  if (proven) return "proven";
  return suspect ? "suspect" : "–";
}
