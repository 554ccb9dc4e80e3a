/** The story of one incident: what, why, what to do, what was done, and the evidence. */

import { getText, runPath } from "../api.js";
import { bytes, duration, percent, rankWords, whole, words } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { Acknowledge } from "../parts/actions.js";
import { IncidentBadge } from "../parts/badge.js";
import { Empty, Fetched, Time } from "../parts/states.js";
import { Verdict } from "../parts/verdict.js";
import { runHref } from "../router.js";
import { useJson, useStream } from "../use_live.js";
import { WaitPicture } from "../waits/picture.js";

const MOST_LOG_LINKS = 16;

/** Shows an incident and follows its state. */
export function IncidentPage({ run, incident, session }) {
  const { data: frame } = useStream(runPath(run, "stream"));
  const own = frame?.incidents_list?.find((item) => item.id === incident);
  const answer = useJson(runPath(run, "incidents", incident), own ? JSON.stringify(own) : "");
  return html`<${Fetched} of=${answer} what=${`incident ${incident}`}>${(data) => html`
    <${Story} run=${run} data=${data} session=${session} />`}<//>`;
}

function Story({ run, data, session }) {
  const over = data.state === "recovered" || data.state === "resolved";
  const health = over ? "over" : data.state === "open" || data.state === "failed" ? "bad" : "attention";
  return html`
    <p class="state-line"><${IncidentBadge} state=${data.state} /> ${data.state_text !== words(data.state) && html`<span>${data.state_text}</span>`}</p>
    <${Verdict} run=${run} health=${health} attention=${{ ...data, incident: null }}>
      ${data.can_be_acknowledged && html`<${Acknowledge} run=${run} incident=${data.id} session=${session} />`}
    <//>
    ${data.waits.length > 0 && html`<section aria-label="Who waits for whom"><h2>Who waits for whom</h2>
      <${WaitPicture} waits=${data.waits} waiting=${data.waiting_ranks} culprits=${data.culprits} /></section>`}
    ${data.calls.length > 0 && html`<section aria-label="Calls"><h2>Calls</h2>
      <ul class="calls">${data.calls.map((line) => html`<li key=${line}>${line}</li>`)}</ul></section>`}
    <div class="columns">
      <section aria-label="Timeline"><h2>Timeline</h2><${Timeline} data=${data} /></section>
      <section aria-label="Facts"><h2>Facts</h2><${Facts} run=${run} data=${data} /></section>
    </div>
    <${Evidence} run=${run} data=${data} />`;
}

function Timeline({ data }) {
  const entries = [
    [data.last_progress_unix_s, "last progress before the incident"],
    [data.detected_unix_s, `detected: ${data.kind_text || words(data.kind)}`],
    ...data.actions.map((action) => [action.unix_s, action.what]),
    [data.recovered_unix_s, "recovered"],
  ].filter(([unixS]) => unixS).sort(([a], [b]) => a - b);
  return html`<ol class="timeline">${entries.map(([unixS, what], index) => html`<li key=${index}>
    <${Time} unixS=${unixS} /> <span>${what}</span>
    ${index > 0 && html`<span class="quiet">+${duration(unixS - entries[index - 1][0])}</span>`}</li>`)}</ol>`;
}

function Facts({ run, data }) {
  const rows = [
    ["Kind", data.kind_text || words(data.kind)],
    ["Named ranks", data.culprits.length ? rankWords(data.culprits) : "none"],
    ["Their processes", data.places.length ? html`<${Places} places=${data.places} />` : null],
    ["Their logs", data.culprits.length ? html`<${LogLinks} run=${run} data=${data} />` : null],
    ["Generation", whole(data.generation)],
    ["Step", data.step >= 0 ? whole(data.step) : null],
    ["Phase", data.phase ? words(data.phase) : null],
    ["Confidence", data.confidence_ratio > 0 ? percent(data.confidence_ratio) : null],
    ["Steps lost", typeof data.lost_steps === "number" ? whole(data.lost_steps) : null],
    ["Continued after step", data.resumed_step >= 0 && data.resumed_step !== null ? whole(data.resumed_step) : null],
    ["Runbook", data.runbook ? html`<a href=${data.runbook} target="_blank" rel="noreferrer">what to do</a>` : null],
  ].filter(([, value]) => value !== null);
  return html`<dl class="numbers">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt>
    <dd>${value}</dd></div>`)}</dl>`;
}

function Places({ places }) {
  return html`${places.slice(0, MOST_LOG_LINKS).map(({ rank, node, pid }) => html`<div key=${rank}>rank ${rank}: ${
    node || "node unknown"}${pid > 0 && `, pid ${pid}`}</div>`)}${
    places.length > MOST_LOG_LINKS && `and ${places.length - MOST_LOG_LINKS} more`}`;
}

// A rank that died is restarted: the link names the generation in which it was named.
function LogLinks({ run, data }) {
  const ranks = data.culprits.slice(0, MOST_LOG_LINKS);
  return html`${ranks.map((rank, index) => html`${index > 0 && ", "}<a key=${rank}
    href=${runHref(run, "ranks", String(rank), "generations", String(data.generation))}>rank ${rank}</a>`)}${
    data.culprits.length > ranks.length && ` and ${data.culprits.length - ranks.length} more`}`;
}

function Evidence({ run, data }) {
  // Until a person has chosen one, the stack of the first named rank is open.
  const [chosen, setName] = useState(null);
  const stack = `rank-${String(data.culprits[0]).padStart(5, "0")}.stack.txt`;
  const name = chosen ?? data.evidence.find((file) => file.name.endsWith(stack))?.name ?? "";
  const path = (file) => runPath(run, "incidents", data.id, "evidence", file);
  return html`<section aria-label="Evidence">
    <h2>Evidence</h2>
    <p><a class="button" href=${runPath(run, "incidents", data.id, "archive")} download>Download everything (tar.gz)</a></p>
    ${data.evidence.length === 0 && html`<${Empty}>No files were gathered for this incident.<//>`}
    <ul class="files">${data.evidence.map((file) => html`<li key=${file.name}>
      <button type="button" class="link" aria-expanded=${name === file.name}
        onClick=${() => setName(name === file.name ? "" : file.name)}>${file.name}</button>
      <span class="quiet">${bytes(file.bytes)}</span>
      <a href=${`${path(file.name)}?download=1`} download aria-label=${`Download ${file.name}`}>Download</a>
      ${name === file.name && html`<${EvidenceText} path=${path(file.name)} name=${name} />`}
    </li>`)}</ul>
  </section>`;
}

function EvidenceText({ path, name }) {
  const [text, setText] = useState("Loading …");
  useEffect(() => {
    const abort = new AbortController();
    getText(path, abort.signal).then(setText, (error) => {
      if (error.name === "AbortError") return;
      setText(error.status === 0 ? `This page did not get ${name} before the connection was lost.`
        : `Cannot load ${name}: ${error.message}`);
    });
    return () => abort.abort();
  }, [path]);
  return html`<pre tabindex="0" role="region" aria-label=${`Text of ${name}`}>${text}</pre>`;
}
