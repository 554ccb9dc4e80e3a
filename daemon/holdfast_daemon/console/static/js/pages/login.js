/** The page for a browser without a session. */

import { login } from "../api.js";
import { html, useState } from "../html.js";

/** Asks for a token; `onDone` is called once the daemon has accepted one. */
export function LoginPage({ onDone }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    setError("");
    try {
      await login(token.trim());
      onDone();
    } catch (failure) {
      setError(failure.status === 401 ? "The daemon does not know this token: copy it again." : failure.message);
    }
  };
  return html`<main class="login">
    <form onSubmit=${submit}>
      <h1><img src="favicon.svg" alt="" width="28" height="28" /> Holdfast console</h1>
      <label for="token">Token</label>
      <input id="token" type="password" autocomplete="off" spellcheck=${false} required value=${token}
        aria-describedby="where" onInput=${(event) => setToken(event.target.value)} />
      <p id="where" class="quiet">Run <code>holdfast console</code> on the machine of the daemon. It prints an address
        that holds the token. Open that address, or copy the part after <code>#token=</code>.</p>
      <p class="form-error" role="alert">${error}</p>
      <button type="submit" class="primary">Log in</button>
    </form>
  </main>`;
}
