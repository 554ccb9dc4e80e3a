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
  const { parent } = history;  // 0: none; null: the nodes have not reported it
  const origin = parent ? `, from history ${parent} after step ${whole(history.parent_step)}`
    : parent === 0 ? ", from the beginning" : "";
  const newestFirst = [...history.checkpoints].sort((a, b) => b.step - a.step);
  return html`<section aria-label=${`History ${history.number}`}>
    <h2>History ${history.number}<span class="sub">${origin}</span></h2>
    ${newestFirst.length === 0 ? html`<${Empty}>It has no checkpoint yet.<//>` : html`<table class="narrow">
      <caption class="hidden">Checkpoints of history ${history.number}, newest first</caption>
      <thead><tr><th scope="col">Step</th><th scope="col">Form</th><th scope="col" class="num">Size</th>
        <th scope="col" class="num wide">Share of the state</th><th scope="col" class="mid">Committed</th>
        <th scope="col">Kept</th><th scope="col">Loss</th><th scope="col" class="mid">Verified</th></tr></thead>
      <tbody>${newestFirst.map((item) => html`<tr key=${item.step}>
        <th scope="row">${whole(item.step)}${item.left && html`<span class="line">left</span>`}</th>
        <td><span class=${`form ${item.form}`}>${item.form || "–"}</span>
          ${item.base_step !== null && html`<span class="line">to step ${whole(item.base_step)}</span>`}</td>
        <td class="num">${bytes(item.bytes)}</td>
        <td class="num wide">${item.raw_bytes > 0 ? percent(item.bytes / item.raw_bytes) : "–"}</td>
        <td class="mid"><${Time} unixS=${item.committed_unix_s} /></td>
        <td><${Kept} of=${item} /></td>
        <td class=${item.suspect ? "bad-text" : ""}>${lossWords(item)}</td>
        <td class="mid"><${Verified} of=${item} /></td>
      </tr>`)}</tbody>
    </table>`}
    <${Reasons} checkpoints=${newestFirst} />
  </section>`;
}

// Why a checkpoint stays although it is old. The newest ones stay without a reason.
function Kept({ of: { kept, kept_for: reason, needed_by: builders } }) {
  return html`${keptWord(kept, builders)}
    ${reason && html`<span class="line">for: ${reason}</span>`}
    ${builders.length > 0 && html`<span class="line">needed to read step${builders.length > 1 && "s"}${" "}
      ${builders.map(whole).join(", ")}</span>`}`;
}

function keptWord(kept, builders) {
  if (kept || builders.length > 0) return "kept";
  return kept === null ? "–" : "no";
}

// Every writer reads a shard back from the disk before the commit. Later readings are those of the command.
function Verified({ of: { problem, verified, verified_unix_s: unixS, committed_unix_s: committed } }) {
  if (problem) return html`<span class="bad-text">unusable</span>`;
  if (verified === null) return committed === null ? "–" : "read back when written";
  const when = html`<span class="line"><${Time} unixS=${unixS} /></span>`;
  return verified ? html`verified${when}` : html`<span class="bad-text">damaged</span>${when}`;
}

// Whole paths have no room in a column.
function Reasons({ checkpoints }) {
  const wrong = checkpoints.flatMap(({ step, problem, damages }) =>
    [problem, ...damages].filter(Boolean).map((line) => ({ step, line })));
  return html`
    ${wrong.length > 0 && html`<h3>What is wrong</h3>
      <ul aria-label="What is wrong">${wrong.map(({ step, line }) =>
        html`<li key=${step + line}>Step ${whole(step)}: <code>${line}</code></li>`)}</ul>`}
    ${checkpoints.some((item) => item.left) && html`<p class="quiet">
      Left: a later start continued from an older checkpoint. So no start uses this one.</p>`}`;
}

// What the losses after a checkpoint say of its state. Without its files nothing is known of that.
function lossWords({ proven, suspect }) {
  if (proven) return "proven";
  return suspect ? "suspect" : "–";
}
