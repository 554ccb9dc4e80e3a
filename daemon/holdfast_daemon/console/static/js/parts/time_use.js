/** Where the wall time of a run went: one stacked bar and its table. */

import { duration, percent, words } from "../format.js";
import { html } from "../html.js";

const TEXTS = {
  productive: "productive", start_up: "start-up", detection: "until a fault was noticed", restart: "restarts",
  repeated_steps: "steps done again", checkpoint_stall: "stalls for checkpoints", data_wait: "waits for data",
  evaluation: "evaluation", idle: "idle",
};

function totalOf(use) {
  return Object.values(use ?? {}).reduce((sum, seconds) => sum + seconds, 0);
}

/** Returns the productive share, or null: the same number as in the table, so that both are rounded alike. */
export function productiveRatio(use) {
  const total = totalOf(use);
  return total > 0 ? (use.productive ?? 0) / total : null;
}

/** Shows the time by use, the productive time first, then the largest loss. */
export function TimeUse({ use, wallS }) {
  const total = totalOf(use);
  if (total <= 0) return html`<p class="quiet">No time has been counted yet.</p>`;
  const rows = Object.entries(use).filter(([, seconds]) => seconds > 0)
    .sort(([a, first], [b, second]) => (b === "productive") - (a === "productive") || second - first);
  return html`
    <div class="stack" aria-hidden="true">${rows.map(([name, seconds]) => html`<span key=${name} class=${`use-${name}`}
      style=${{ flexGrow: seconds / total }} title=${`${TEXTS[name] ?? words(name)}: ${percent(seconds / total)}`}></span>`)}
    </div>
    <table class="uses">
      <caption class="hidden">Wall time by use</caption>
      <thead class="hidden"><tr><th scope="col">Use</th><th scope="col">Share</th><th scope="col">Time</th></tr></thead>
      <tbody>${rows.map(([name, seconds]) => html`<tr key=${name}>
        <th scope="row"><span class=${`key use-${name}`}></span>${TEXTS[name] ?? words(name)}</th>
        <td class="num">${percent(seconds / total)}</td><td class="num">${duration(seconds)}</td></tr>`)}</tbody>
      <tfoot><tr><th scope="row">wall time</th><td></td><td class="num">${duration(wallS ?? total)}</td></tr></tfoot>
    </table>`;
}
