/** What is wrong, why, and what to do next: the loudest thing on a page. */

import { html } from "../html.js";
import { runHref } from "../router.js";

/** Shows a verdict; `health` is "bad", or "attention" when nothing has to be done at this moment. */
export function Verdict({ run, health, attention, children }) {
  return html`<section class=${`verdict ${health}`} aria-label="What is wrong">
    <h2>${attention.what}</h2>
    <div class="verdict-words">
    ${attention.why.length > 0 && html`<div class="why"><h3>Why</h3>
      <ul>${attention.why.map((line, index) => html`<li key=${index}>${line}</li>`)}</ul></div>`}
    ${attention.next && html`<div class="next"><h3>What to do next</h3><p>${attention.next}</p></div>`}
    ${attention.incident && html`<p><a href=${runHref(run, "incidents", attention.incident)}>
      Open incident ${attention.incident}</a></p>`}
    </div>
    ${children}
  </section>`;
}
