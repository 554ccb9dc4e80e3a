/** The newest stack of a rank: from an incident, or requested here by an operator. */

import { postJson, runPath } from "../api.js";
import { useLostConnection } from "../connection.js";
import { html, useState } from "../html.js";
import { Time } from "../parts/states.js";
import { runHref } from "../router.js";

/** Shows the stack and, to an operator, the button that takes another one; `onTaken` fetches the rank again. */
export function RankStack({ run, data, session, onTaken }) {
  const mayTake = session.role === "operator";
  return html`<h3>Stack</h3>
    ${data.stack
      ? html`<p class="quiet"><${Source} run=${run} stack=${data.stack} /></p>
        ${data.stack.problem && html`<p class="quiet">${data.stack.problem}</p>`}
        <pre tabindex="0" role="region" aria-label="Stack">${data.stack.text}</pre>`
      : html`<p class="quiet">None so far. Holdfast takes stacks when something is wrong.</p>`}
    ${mayTake && html`<${TakeButton} run=${run} data=${data} onTaken=${onTaken} />`}`;
}

function Source({ run, stack }) {
  const from = stack.incident
    ? html`for <a href=${runHref(run, "incidents", stack.incident)}>${`incident ${stack.incident}`}</a>`
    : "for an operator";
  return html`Taken ${from} at <${Time} unixS=${stack.unix_s} />${stack.generation !== null
    && `, in generation ${stack.generation}: the rank has been restarted since`}.`;
}

function TakeButton({ run, data, onTaken }) {
  const [busy, setBusy] = useState(false);
  const [done, setDone] = useState("");
  const [error, setError] = useState("");
  const lost = useLostConnection() !== null;
  const reason = lost ? "not connected" : data.stacks_refused || (data.life === "exited" ? "the rank has exited" : "");
  const take = async () => {
    setBusy(true);
    setDone("");
    setError("");
    try {
      setDone((await postJson(runPath(run, "actions", "stacks"), { rank: data.rank })).done);
      onTaken();
    } catch (failure) {
      setError(failure.message);
    }
    setBusy(false);
  };
  return html`<p class="buttons">
      <button type="button" disabled=${busy || reason !== ""} aria-describedby=${reason ? "why-stack" : undefined}
        onClick=${take}>${busy ? "Taking a stack …" : "Take a stack"}</button>
      ${reason && html`<span class="quiet" id="why-stack">${reason}</span>`}
    </p>
    <p role="status" class="done">${done}</p>
    <p class="form-error" role="alert">${error}</p>`;
}
