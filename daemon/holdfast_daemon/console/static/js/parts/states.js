/** What a page says when there is nothing to show yet, nothing at all, or an error. */

import { html } from "../html.js";
import { clock, exactTime } from "../format.js";

/** Says what is being loaded. */
export function Loading({ what }) {
  return html`<p class="quiet loading" role="status">Loading ${what} …</p>`;
}

/** Says that there is nothing, and why. */
export function Empty({ children }) {
  return html`<p class="quiet empty">${children}</p>`;
}

/** Says what failed and what to do. */
export function Problem({ title, text, onRetry }) {
  return html`<section class="problem" role="alert">
    <h2>${title}</h2>
    <p>${text}</p>
    ${onRetry && html`<button type="button" onClick=${onRetry}>Try again</button>`}
  </section>`;
}

/**
 * Shows a fetched document: the error, the loading state, or what `children` makes of the data.
 * Data that could not be renewed stays, with the error above it.
 */
export function Fetched({ of, what, children }) {
  if (of.data === null) {
    if (!of.error) return html`<${Loading} what=${what} />`;
    return html`<${Problem} title=${`Cannot load ${what}`} text=${of.error} onRetry=${of.reload} />`;
  }
  return html`${of.error && html`<${Problem} title=${`Cannot update ${what}`} onRetry=${of.reload}
    text=${`${of.error}. What follows is older.`} />`}${children(of.data)}`;
}

/**
 * Says since when no updates arrive. It never says that the run has a problem: that is not known.
 * @param {{lost: {since: number, reason: string} | null, ended?: string}} props `ended`: name of a run that is known to
 *     have ended. The daemon of a local run ends with it.
 */
export function Disconnected({ lost, ended }) {
  return html`<div role="status" aria-live="polite">${lost && html`<p class="disconnected">
    <strong>Not connected since ${html`<${Time} unixS=${lost.since / 1000} />`}, showing the last known state.</strong>
    ${" "}${ended
      ? html`The run had ended, and its daemon may have ended with it. <code>holdfast report ${ended}</code> shows the run.`
      : html`Reason: ${lost.reason}. This page tries to connect again.`}
  </p>`}</div>`;
}

/** Shows a time in the browser's zone; the exact one is in the tooltip. */
export function Time({ unixS }) {
  if (!unixS) return "–";
  return html`<time dateTime=${new Date(1000 * unixS).toISOString()} title=${exactTime(unixS)}>${clock(unixS)}</time>`;
}
