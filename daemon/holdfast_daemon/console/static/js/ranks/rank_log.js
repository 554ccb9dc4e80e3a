/** The end of a rank's log. A rank that died is restarted: the log of an older generation explains its death. */

import { runPath } from "../api.js";
import { html, useEffect, useRef } from "../html.js";
import { Fetched } from "../parts/states.js";
import { runHref } from "../router.js";
import { useJson } from "../use_live.js";

const BYTES = 20000;

/** Shows the log of a generation, and lets a person choose another; `generation` undefined: the newest. */
export function RankLog({ run, rank, generation }) {
  const which = generation === undefined ? "" : `&generation=${generation}`;
  const answer = useJson(`${runPath(run, "ranks", String(rank), "log")}?bytes=${BYTES}${which}`);
  const box = useRef(null);
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [answer.data]);
  const choose = (event) => { location.hash = runHref(run, "ranks", String(rank), "generations", event.target.value); };
  return html`<h3>Log</h3>
    <${Fetched} of=${answer} what="the log">${(data) => html`
      ${data.generations.length > 1 && html`<p><label>Generation <select value=${data.generation} onChange=${choose}>
        ${data.generations.map((one) => html`<option key=${one.generation} value=${one.generation}
          selected=${one.generation === data.generation}>${optionWords(one, data)}</option>`)}</select></label></p>`}
      ${data.generation !== data.newest_generation && html`<p class="quiet">What is above the log is about generation
        ${" "}${data.newest_generation}.</p>`}
      ${data.note && html`<p class="quiet">${data.note}</p>`}
      ${data.text && html`<pre ref=${box} tabindex="0" role="region" aria-label="End of the log">${data.text}</pre>
        <p class="quiet">End of <code>${data.path}</code>.
          ${" "}<button type="button" class="plain" onClick=${answer.reload}>Read again</button></p>`}`}<//>`;
}

function optionWords({ generation, incidents }, { newest_generation: newest }) {
  const named = incidents.length > 0 ? `, named by ${incidents[0]}` : "";
  return `${generation}${generation === newest ? ", the newest" : ""}${named}`;
}
