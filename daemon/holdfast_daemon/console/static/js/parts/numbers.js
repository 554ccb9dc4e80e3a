/** The newest numbers of a run, as a list of names and values. */

import { counted, duration, figure, percent, short, whole } from "../format.js";
import { html } from "../html.js";

/** Shows the numbers; those that the run does not report are left out. */
export function Numbers({ frame }) {
  const telemetry = frame.telemetry ?? {};
  const reported = (name, show) => {
    if (frame.nonfinite.includes(name)) return html`<span class="bad-text">not finite</span>`;
    return typeof telemetry[name] === "number" ? show(telemetry[name]) : null;
  };
  const step = (value) => (value === null || value === undefined || value < 0 ? null : `step ${whole(value)}`);
  const rows = [
    ["Learning rate", reported("learning_rate", (value) => figure(value, 3))],
    ["Validation loss", reported("validation_loss", figure)],
    ["Gradient norm", reported("grad_norm", figure)],
    ["Loss, robust z-score", reported("loss_zscore", (value) => figure(value, 3))],
    ["Loss scale", reported("loss_scale", figure)],
    ["Model FLOPs utilisation", reported("mfu", percent)],
    ["Tokens per second", reported("tokens_per_s", short)],
    ["Step time", reported("step_s", duration)],
    ["Learned deadline", frame.deadline_s > 0 ? duration(frame.deadline_s) : null],
    ["Newest checkpoint", step(frame.newest_checkpoint)],
    ["Newest snapshot in memory", step(frame.newest_snapshot)],
    ["Newest replica snapshot", step(frame.newest_replica)],
    ["Restarts", whole(frame.restarts)],
    ["Generation", whole(frame.generation)],
    ["Ranks", rankWords(frame)],
    ["Mode", frame.mode || null],
    ["Preset", frame.preset || null],
  ].filter(([, value]) => value !== null);
  return html`<dl class="numbers">${rows.map(([name, value]) => html`<div key=${name}>
    <dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function rankWords(frame) {
  const counts = Object.entries(frame.rank_counts ?? {}).filter(([, count]) => count > 0);
  if (counts.length === 0) return counted(frame.ranks, "rank");
  return counts.map(([state, count]) => `${whole(count)} ${state}`).join(", ");
}
