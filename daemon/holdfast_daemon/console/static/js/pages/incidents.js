/** The incidents of a run, newest first. */

import { runPath } from "../api.js";
import { duration, rankWords, whole, words } from "../format.js";
import { html } from "../html.js";
import { IncidentBadge } from "../parts/badge.js";
import { Empty, Fetched, Time } from "../parts/states.js";
import { runHref } from "../router.js";
import { useJson, useStream } from "../use_live.js";

/** Shows the list of incidents and follows it. */
export function IncidentsPage({ run }) {
  const { data: frame } = useStream(runPath(run, "stream"));
  const version = JSON.stringify(frame?.incidents_list?.map(({ id, state }) => [id, state]) ?? null);
  const answer = useJson(runPath(run, "incidents"), version);
  return html`<${Fetched} of=${answer} what="the incidents">${(data) => html`<${IncidentList} run=${run}
      incidents=${data.incidents} />`}<//>`;
}

/** Shows incidents as a table. */
export function IncidentList({ run, incidents }) {
  if (incidents.length === 0) {
    return html`<${Empty}>No incident so far. Holdfast records one when it confirms that something is wrong.<//>`;
  }
  return html`<table class="incidents">
    <caption class="hidden">Incidents, newest first</caption>
    <thead><tr><th scope="col">What</th><th scope="col">State</th><th scope="col" class="mid">Ranks</th>
      <th scope="col" class="num mid">Step</th><th scope="col" class="wide">Detected</th>
      <th scope="col" class="num wide">Took</th></tr></thead>
    <tbody>${incidents.map((item) => html`<tr key=${item.id}>
      <th scope="row"><a href=${runHref(run, "incidents", item.id)}>${item.what || words(item.kind)}</a>
        <span class="line">${words(item.kind)}</span></th>
      <td><${IncidentBadge} state=${item.state} /></td>
      <td class="mid">${item.culprits?.length ? rankWords(item.culprits) : "–"}</td>
      <td class="num mid">${item.step >= 0 ? whole(item.step) : "–"}</td>
      <td class="wide"><${Time} unixS=${item.detected_unix_s} /></td>
      <td class="num wide">${item.recovered_unix_s ? duration(item.recovered_unix_s - item.detected_unix_s) : "–"}</td>
    </tr>`)}</tbody>
  </table>`;
}
