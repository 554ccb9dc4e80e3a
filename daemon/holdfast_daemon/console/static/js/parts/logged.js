/** The newest numbers that the script logs, under its own names. */

import { figure, whole } from "../format.js";
import { html } from "../html.js";

/** Shows a section with the numbers; nothing if there are none. */
export function Logged({ frame }) {
  const rows = frame.logged ?? [];
  if (rows.length === 0) return null;
  return html`<section aria-label="Logged by the script"><h2>Logged by the script</h2>
    <dl class="numbers">${rows.map(({ name, value, step }) => html`<div key=${name}>
      <dt>${name}</dt>
      <dd>${value === null ? html`<span class="bad-text">not finite</span>` : figure(value)}
        <span class="sub"> ${step < 0 ? "before the first step" : `step ${whole(step)}`}</span></dd></div>`)}</dl>
  </section>`;
}
