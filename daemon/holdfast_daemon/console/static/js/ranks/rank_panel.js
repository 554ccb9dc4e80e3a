/** One rank in detail: what it does, what it waits for, its stack and its log. */

import { runPath } from "../api.js";
import { bytes, duration, percent, whole, words } from "../format.js";
import { html, useEffect, useRef } from "../html.js";
import { Badge } from "../parts/badge.js";
import { Fetched } from "../parts/states.js";
import { runHref } from "../router.js";
import { useJson } from "../use_live.js";
import { RankLog } from "./rank_log.js";

const AGAIN_MS = 2000;
const LIFE_HEALTH = { running: "ok", starting: "unknown", exited: "bad" };

/**
 * Shows a rank and renews it while the page is visible; `onClose` goes back to the map. `generation`: that of the log;
 * undefined: the newest.
 */
export function RankPanel({ run, rank, generation, onClose }) {
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
    <${Fetched} of=${answer} what=${`rank ${rank}`}>${(data) => html`<${Details} run=${run} data=${data} />`}<//>
    <${RankLog} run=${run} rank=${rank} generation=${generation} />
  </aside>`;
}

function Details({ run, data }) {
  const stalled = data.stalled_s >= 1;
  return html`
    <p class="state-line"><${Badge} health=${stalled && data.life === "running" ? "attention" : LIFE_HEALTH[data.life]}
      text=${data.life} /> <span>${data.phase_text}</span></p>
    ${data.blocked_on && html`<p class="blocked"><strong>Waits:</strong> ${data.blocked_on}</p>`}
    ${data.exit && html`<p class="blocked"><strong>Exit:</strong> ${exitWords(data.exit)}</p>
      ${data.exit.last_words && html`<pre tabindex="0" role="region" aria-label="Last words">${data.exit.last_words}</pre>`}`}
    <dl class="numbers">${facts(data).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <h3>Pending calls</h3>
    ${data.pending.length === 0 ? html`<p class="quiet">None.</p>` : html`<ul>${data.pending.map((call, index) => html`
      <li key=${index}><code>${call.op}</code> ${call.seq} in ${call.group}${call.age_s > 0 && `, for ${duration(call.age_s)}`}</li>`)}</ul>`}
    <h3>Stack</h3>
    ${data.stack
      ? html`${data.stack_from && html`<p class="quiet">From <a
          href=${runHref(run, "incidents", data.stack_from)}>${`incident ${data.stack_from}`}</a>.</p>`}<pre tabindex="0" role="region" aria-label="Stack">${data.stack}</pre>`
      : html`<p class="quiet">None so far. Holdfast takes stacks when something is wrong.</p>`}`;
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
    ["Own step time", data.own_time_source ? words(data.own_time_source) : null],
    ["Why not measured", data.own_time_reason],
    ["Recorders", (data.recorders ?? []).map(({ backend, source }) => backend || words(source)).join(", ")],
  ].filter(([, value]) => value);
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
