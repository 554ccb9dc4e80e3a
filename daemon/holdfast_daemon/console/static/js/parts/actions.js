/** What an operator can ask of a run. Each action that changes the run is confirmed first. */

import { postJson, runPath } from "../api.js";
import { html, useState } from "../html.js";
import { useJson } from "../use_live.js";
import { ConfirmDialog } from "./dialog.js";
import { Fetched } from "./states.js";

const KINDS = ["kill", "segfault", "stop", "exception", "out-of-memory", "infinite-loop", "gil-held", "deadlock",
  "data-stall", "frozen-disk", "slow", "skipped-collective", "wrong-shape", "nan-gradient", "bit-flip"];

const ACTIONS = {
  checkpoint: {
    label: "Write a checkpoint", confirm: "Write it",
    text: "All ranks write a checkpoint at the next step that they agree on. Training continues.",
    fields: () => [], body: () => ({}),
  },
  release: {
    label: "Release a checkpoint", confirm: "Release it",
    text: "Holdfast keeps this checkpoint because of an incident. After the release, it is removed when it is old.",
    document: "checkpoints", what: "the kept checkpoints",
    fields: (frame, session, data) => {
      const kept = releasable(data);
      return kept.length ? [{ name: "step", label: "Checkpoint of step", choices: kept.map((item) => item.step),
        hint: (step) => `It is kept for: ${kept.find((item) => String(item.step) === step)?.kept_for}` }] : [];
    },
    without: (data) => {
      if (data.note) return `${data.note}. Use holdfast checkpoint release STEP where they can be reached.`;
      return releasable(data).length ? "" : "No checkpoint is kept because of an incident.";
    },
    body: (form) => ({ step: Number(form.get("step")) }),
  },
  inject: {
    label: "Inject a fault", confirm: "Harm this rank", dangerous: true,
    text: "This harms a rank on purpose, to see how the run recovers. The run may lose time.",
    fields: () => [
      { name: "kind", label: "Kind of fault", choices: KINDS },
      { name: "rank", label: "Rank", number: true, value: 0 },
      { name: "step", label: "Step (empty: the current one)", number: true, optional: true },
    ],
    body: (form) => ({ kind: form.get("kind"), rank: Number(form.get("rank")),
      ...(form.get("step") === "" ? {} : { step: Number(form.get("step")) }) }),
  },
  stop: {
    label: "Stop the run", confirm: "Stop the run", dangerous: true,
    text: "All ranks end after a last checkpoint. When the grace is over, they end without one. Nothing starts again.",
    fields: (frame, session) => [
      { name: "grace_s", label: "Grace in seconds", number: true, value: session.stop_grace_s }],
    body: (form) => ({ grace_s: Number(form.get("grace_s")) }),
  },
};

/** Lets an operator say that an incident is known. It harms nothing, so it is not confirmed. */
export function Acknowledge({ run, incident, session }) {
  const [said, setSaid] = useState("");
  if (session.role !== "operator") return null;
  const send = () => postJson(runPath(run, "actions", "acknowledge"), { incident })
    .then((answer) => setSaid(answer.done), (error) => setSaid(error.message));
  return html`<p><button type="button" onClick=${send}>Acknowledge</button> <span role="status">${said}</span></p>`;
}

/** Returns the checkpoints that a release finds: the kept ones of the present line of training, on this machine. */
function releasable({ histories, note }) {
  if (note) return [];
  return histories.flatMap((history) => history.checkpoints).filter((item) => item.kept && !item.left);
}

/** Shows the actions of a run; a viewer reads why there are none. */
export function Actions({ frame, session, lost }) {
  const [open, setOpen] = useState(null);
  const [done, setDone] = useState("");
  if (session.role !== "operator") {
    return html`<p class="quiet">You are logged in as a viewer. Actions need the token of the operator.</p>`;
  }
  return html`<ul class="actions">
      ${Object.entries(ACTIONS).filter(([name]) => frame.actions?.[name] !== undefined).map(([name, action]) => {
        const reason = lost ? "not connected" : frame.actions[name];
        return html`<li key=${name}>
          <button type="button" class=${action.dangerous ? "dangerous" : ""} disabled=${reason !== ""}
            aria-describedby=${reason ? `why-${name}` : undefined} onClick=${() => setOpen(name)}>${action.label}</button>
          ${reason && html`<span class="quiet" id=${`why-${name}`}>${reason}</span>`}
        </li>`;
      })}
    </ul>
    <p role="status" class="done">${done}</p>
    ${open && html`<${ActionDialog} key=${open} name=${open} frame=${frame} session=${session} onClose=${() => setOpen(null)}
      onDone=${setDone} />`}`;
}

function ActionDialog({ name, frame, session, onClose, onDone }) {
  const action = ACTIONS[name];
  // What can be chosen is fetched when the dialog opens: the stream does not carry it.
  const known = useJson(action.document ? runPath(frame.run, action.document) : null);
  const isKnown = !action.document || known.data !== null;
  const fields = isKnown ? action.fields(frame, session, known.data) : [];
  const without = isKnown ? action.without?.(known.data) ?? "" : "";
  const [values, setValues] = useState({});
  const value = (field) => values[field.name] ?? String(field.value ?? field.choices?.[0] ?? "");
  const send = async () => {
    if (!isKnown || without) throw new Error(without || `Wait for ${action.what}.`);
    const form = new Map(fields.map((field) => [field.name, value(field)]));
    const answer = await postJson(runPath(frame.run, "actions", name), action.body(form));
    onDone(answer.done);
  };
  const set = (field) => (event) => setValues((old) => ({ ...old, [field.name]: event.target.value }));
  return html`<${ConfirmDialog} title=${`${action.label}: ${frame.run}`} confirm=${action.confirm}
    dangerous=${action.dangerous} onConfirm=${send} onClose=${onClose}>
    <p>${action.text}</p>
    ${action.document && html`<${Fetched} of=${known} what=${action.what}>${() => without && html`<p>${without}</p>`}<//>`}
    ${fields.map((field) => html`<p key=${field.name}><label>${field.label} ${field.choices
      ? html`<select value=${value(field)} onChange=${set(field)} required>
          ${field.choices.map((choice) => html`<option key=${choice} value=${String(choice)}>${choice}</option>`)}</select>`
      : html`<input type="number" min="0" step="1" required=${!field.optional} value=${value(field)}
          onInput=${set(field)} />`}</label>
      ${field.hint && html`<span class="line">${field.hint(value(field))}</span>`}</p>`)}
  <//>`;
}
