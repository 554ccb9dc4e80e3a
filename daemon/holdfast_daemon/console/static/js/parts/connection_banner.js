/** The one banner that says that the daemon does not answer, what is known of the run, and what shows it now. */

import { useLostConnection } from "../connection.js";
import { html } from "../html.js";
import { Time } from "./states.js";

const ENDED = ["finished", "failed", "stopped"];
const MOST_RUNS = 3;

/**
 * Says since when nothing arrives. What it says of a run is the last that the daemon has said.
 * @param {{run?: string}} props Run of the page; without one, the banner is about all runs.
 */
export function ConnectionBanner({ run }) {
  const lost = useLostConnection();
  return html`<div role="status" aria-live="polite">${lost && html`<div class="disconnected">
    <${Words} lost=${lost} runs=${lost.runs.filter((one) => !run || one.run === run)} name=${run} />
  </div>`}</div>`;
}

function Words({ lost, runs, name }) {
  if (lost.isRefused) {
    return html`<p><strong>The daemon does not show this: ${lost.reason}.</strong> This page asks again.</p>`;
  }
  const ended = runs.length > 0 && runs.every(({ state }) => ENDED.includes(state));
  const since = html`<${Time} unixS=${lost.since / 1000} />`;
  const shown = runs.slice(0, MOST_RUNS);
  if (ended) {
    return html`
      <p><strong>${shown.map((one) => html`Run ${one.run} has ended: ${one.text}. `)}${more(runs)}</strong></p>
      <p>${lost.isFarewell ? "The daemon ended at" : "The daemon has not answered since"} ${since}, and this console
        is gone. What this page still shows is the last known state.</p>
      <${Commands} name=${name ?? (runs.length === 1 ? runs[0].run : "")} />`;
  }
  return html`
    <p><strong>Not connected since ${since}, showing the last known state.</strong> Reason:${" "}
      ${lost.isFarewell ? "the daemon has ended, and this console with it" : lost.reason}. This page tries to connect
      again.</p>
    ${runs.length > 0 && html`<p>
      ${shown.map((one) => html`The last that is known of run ${one.run}: ${one.state}. `)}${more(runs)}</p>`}
    <${Commands} name=${name ?? (runs.length === 1 ? runs[0].run : "")} />`;
}

function more(runs) {
  return runs.length > MOST_RUNS ? `And ${runs.length - MOST_RUNS} more. ` : "";
}

function Commands({ name }) {
  const of = name ? ` --run ${name}` : "";
  return html`<p>Where the run was started, <code>holdfast console${of}</code> serves this page again once the run has
    ended. These show the run without a console: <code>holdfast report${name ? ` ${name}` : ""}</code>, <code>holdfast incidents${of}</code> and${" "}
    <code>holdfast logs${of}</code>. If it had a <code>--directory</code>, name that too.</p>`;
}
