/** What a page says when there is nothing to show yet, nothing at all, or an error. */

import { useLostConnection } from "../connection.js";
import { html } from "../html.js";
import { clock, exactTime } from "../format.js";
import { isUnanswered } from "../use_live.js";

/** Says what is being loaded; while the daemon does not answer, that it is not here. */
export function Loading({ what }) {
  const lost = useLostConnection();
  if (lost?.isRefused) return html`<p class="quiet empty">There is nothing to show of ${what}.</p>`;
  if (lost) {
    return html`<p class="quiet empty">This page did not get ${what} before the connection was lost.</p>`;
  }
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
    if (!of.error || isUnanswered(of)) return html`<${Loading} what=${what} />`;
    return html`<${Problem} title=${`Cannot load ${what}`} text=${of.error} onRetry=${of.reload} />`;
  }
  return html`${of.error && !isUnanswered(of) && html`<${Problem} title=${`Cannot update ${what}`} onRetry=${of.reload}
    text=${`${of.error}. What follows is older.`} />`}${children(of.data)}`;
}

/** Shows a time in the browser's zone; the exact one is in the tooltip. */
export function Time({ unixS }) {
  if (!unixS) return "–";
  return html`<time dateTime=${new Date(1000 * unixS).toISOString()} title=${exactTime(unixS)}>${clock(unixS)}</time>`;
}
