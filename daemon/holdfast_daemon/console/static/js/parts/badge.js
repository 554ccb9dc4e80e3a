/** A state as a coloured shape with its word: never by colour alone. */

import { html } from "../html.js";
import { words } from "../format.js";

const SHAPES = {
  ok: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1z",
  attention: "M8 1l7.5 13.5H.5z",
  bad: "M2 2h12v12H2z",
  ended: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1zm0 3a4 4 0 1 1 0 8 4 4 0 0 1 0-8z",
  unknown: "M8 0l8 8-8 8-8-8zm0 4L4 8l4 4 4-4z",
};

const INCIDENT_HEALTH = {
  open: "bad", failed: "bad", standstill: "attention", noted: "attention", recovered: "ok", resolved: "ok",
};

/** Shows a state: `health` chooses shape and colour, `text` is the word. */
export function Badge({ health, text }) {
  const known = SHAPES[health] ? health : "unknown";
  return html`<span class=${`badge ${known}`}>
    <svg viewBox="0 0 16 16" width="10" height="10" aria-hidden="true"><path d=${SHAPES[known]} fill-rule="evenodd" /></svg>
    ${text}
  </span>`;
}

/** Shows the state of an incident. */
export function IncidentBadge({ state }) {
  return html`<${Badge} health=${INCIDENT_HEALTH[state] ?? "unknown"} text=${words(state)} />`;
}
