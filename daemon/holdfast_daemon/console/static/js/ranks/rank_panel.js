/** One rank in detail: what it does, what it waits for, its stack and its log. */

import { runPath } from "../api.js";
import { bytes, duration, percent, whole, words } from "../format.js";
import { html, useEffect, useRef } from "../html.js";
import { Badge } from "../parts/badge.js";
import { Fetched } from "../parts/states.js";
import { useJson } from "../use_live.js";
import { RankLog } from "./rank_log.js";
import { RankStack } from "./rank_stack.js";

const AGAIN_MS = 2000;
const OWN_TIME_SOURCES = { events: "by events on the GPU", host: "by the training thread" };

/**
 * Shows a rank and renews it while the page is visible; `onClose` goes back to the map. `generation`: that of the log;
 * undefined: the newest.
 */
export function RankPanel({ run, rank, generation, session, onClose }) {
  const answer = useJson(runPath(run, "ranks", String(rank)));
  const heading = useRef(null);
  useEffect(() => heading.current.focus(), []);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && answer.reload(), AGAIN_MS);
    return () => clearInterval(timer);
  }, [answer.reload]);
  const onKeyDown = (event) => event.key === "Escape" && onClose();
  return html`<aside class="panel" aria-label=${`Rank ${rank}`} onKeyDown=${onKeyDown}>
    <div class="panel-head"><h2 tabindex="-1" ref=${heading}>Rank ${rank}</h2>
      <button type="button" onClick=${onClose}>Close</button></div>
    <${Fetched} of=${answer} what=${`rank ${rank}`}>${(data) => html`
      <${Details} data=${data} />
      <${RankStack} run=${run} data=${data} session=${session} onTaken=${answer.reload} />`}<//>
    <${RankLog} run=${run} rank=${rank} generation=${generation} />
  </aside>`;
}

function Details({ data }) {
  const { health } = data;
  return html`
    ${data.stale && html`<p class="attention-text">${data.stale}</p>`}
    <p class="state-line"><${Badge} health=${data.stale ? "unknown" : data.badge} text=${!health || health === "ok" ? data.life : health} />
      <span>${data.phase_text}</span></p>
    ${data.blocked_on && html`<p class="blocked"><strong>Waits:</strong> ${data.blocked_on}</p>`}
    ${data.exit && html`<p class="blocked"><strong>Exit:</strong> ${exitWords(data.exit)}</p>
      ${data.exit.last_words && html`<pre tabindex="0" role="region" aria-label="Last words">${data.exit.last_words}</pre>`}`}
    <dl class="numbers">${facts(data).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <h3>Pending calls</h3>
    ${data.pending.length === 0 ? html`<p class="quiet">None.</p>` : html`<ul>${data.pending.map((call, index) => html`
      <li key=${index}><code>${call.op}</code> ${call.seq} in ${call.group}</li>`)}</ul>`}`;
}

function facts(data) {
  const place = Object.entries(data.coordinates ?? {}).map(([axis, index]) => `${axis} ${index}`).join(", ");
  const memory = data.memory_bytes > 0
    ? bytes(data.memory_bytes) + (data.memory_limit_bytes > 0
      ? ` of ${bytes(data.memory_limit_bytes)} (${percent(data.memory_bytes / data.memory_limit_bytes)})` : "")
    : null;
  return [
    ["Node", data.node], ["Process", data.pid ? `${data.pid}${data.process_state ? `, state ${data.process_state}` : ""}` : null],
    ["Step", data.step >= 0 ? whole(data.step) : null], ["Phase", words(data.phase)],
    ["Without progress", data.stalled_s > 0 ? duration(data.stalled_s) : null], ["Place", place],
    ["Device", data.device], ["GPU", data.gpu && gpuWords(data.gpu)], ["Memory", memory],
    ["Own time of a step", ownTimeWords(data)],
    ["Why not measured", data.own_time_reason],
    ["Recorders", (data.recorders ?? []).map(({ backend, source }) => backend || words(source)).join(", ")],
  ].filter(([, value]) => value);
}

function ownTimeWords({ own_step_s: ownS, own_time_source: source }) {
  if (source === "none") return "cannot be separated from waiting";
  if (ownS === null || ownS === undefined) return null;
  return source ? `${duration(ownS)}, measured ${OWN_TIME_SOURCES[source] ?? words(source)}` : duration(ownS);
}

function gpuWords({ gpu, uuid, utilization_sum: sum, utilization_samples: samples, throttles, fault }) {
  return [`${gpu}`, uuid, samples > 0 && `${percent(sum / samples)} busy`, throttles?.length > 0 && `slowed by ${throttles.join(", ")}`,
    fault && `error: ${fault.meaning || fault.line || `XID ${fault.xid}`}`].filter(Boolean).join(", ");
}

function exitWords(exit) {
  const how = typeof exit.signal === "number" ? `signal ${exit.signal}`
    : typeof exit.code === "number" ? `code ${exit.code}` : "cause unknown";
  return [how, exit.out_of_memory && "killed by the kernel to free memory", exit.never_attached && "before it had called attach()",
    exit.step >= 0 && `in step ${whole(exit.step)}`, exit.kernel_line, exit.gpu_fault?.meaning].filter(Boolean).join(", ");
}
