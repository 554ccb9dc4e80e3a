/** The picture of the waits of an incident that another page mentions. */

import { runPath } from "../api.js";
import { html } from "../html.js";
import { useJson } from "../use_live.js";
import { WaitPicture } from "./picture.js";

/** Fetches an incident, again when `version` changes, and draws its waits if it has any. */
export function IncidentWaits({ run, incident, version }) {
  const answer = useJson(runPath(run, "incidents", incident), version);
  if (!answer.data || answer.data.waits.length === 0) return null;
  return html`<${WaitPicture} waits=${answer.data.waits} waiting=${answer.data.waiting_ranks}
    culprits=${answer.data.culprits} />`;
}
