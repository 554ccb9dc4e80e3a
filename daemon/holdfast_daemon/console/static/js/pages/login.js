/** The page for a browser without a session. */

import { getJson, login } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";

const AGAIN_MS = 3000;

/**
 * Asks for a token; `onDone` is called once the daemon has accepted one. With `follows` it is also called once another
 * tab of the browser has logged in: the session is the browser's. It is not called while somebody types a token.
 */
export function LoginPage({ onDone, follows }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const typed = useRef("");
  typed.current = token;
  useEffect(() => {
    if (!follows) return undefined;
    const abort = new AbortController();
    const isBusy = () => document.hidden || typed.current !== "";
    const ask = () => isBusy() || getJson("api/session", abort.signal).then(
      () => !isBusy() && onDone(),
      () => {},  // no session, or no answer: it asks again
    );
    const timer = setInterval(ask, AGAIN_MS);
    return () => {
      clearInterval(timer);
      abort.abort();
    };
  }, [follows]);
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
