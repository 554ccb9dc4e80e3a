/** A dialog that asks before an action is taken. */

import { html, useEffect, useId, useRef, useState } from "../html.js";

/**
 * Asks a person to confirm.
 * @param {{title: string, confirm: string, dangerous?: boolean, onConfirm: () => Promise<void>, onClose: () => void,
 *     children?: unknown}} props `onConfirm` rejects with an error whose message the dialog shows.
 */
export function ConfirmDialog({ title, confirm, dangerous, onConfirm, onClose, children }) {
  const dialog = useRef(null);
  const heading = useId();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  useEffect(() => dialog.current.showModal(), []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      await onConfirm();
      dialog.current.close();
    } catch (failure) {
      setError(failure.message);
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} aria-labelledby=${heading} onClose=${onClose}>
    <form onSubmit=${submit}>
      <h2 id=${heading}>${title}</h2>
      ${children}
      <p class="form-error" role="alert">${error}</p>
      <p class="buttons">
        <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
        <button type="submit" class=${dangerous ? "dangerous" : "primary"} disabled=${busy}>
          ${busy ? "Sending …" : confirm}</button>
      </p>
    </form>
  </dialog>`;
}
