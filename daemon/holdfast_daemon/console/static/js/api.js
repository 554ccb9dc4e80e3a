/**
 * Requests to the daemon: JSON, errors as one line, and the session. All paths are relative to the page's address: a
 * proxy may serve it below a path of its own.
 */

const TOKEN = `holdfast-token ${location.pathname}`;
let fromAddress = "";

/** An answer that is no success, or none at all. `status` is 0 when the daemon could not be reached. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Returns the path of an API of a run; each part is escaped. */
export function runPath(run, ...rest) {
  return `api/runs/${[run, ...rest].map(encodeURIComponent).join("/")}`;
}

/**
 * Gets a JSON document.
 * @throws {ApiError}
 */
export async function getJson(path, signal) {
  return (await request(path, { signal })).json();
}

/**
 * Gets a text.
 * @throws {ApiError}
 */
export async function getText(path, signal) {
  return (await request(path, { signal })).text();
}

/**
 * Posts a JSON document and returns the answer.
 * @throws {ApiError}
 */
export async function postJson(path, body) {
  const answer = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body ?? {}),
  });
  return answer.status === 204 ? {} : answer.json();
}

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the daemon does not answer");
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new ApiError(answer.status, body.error || `the daemon answered with status ${answer.status}`);
}

/** Returns why the daemon refuses a stream, in its words; "" if it does not, or gives no answer. */
export async function refusalOf(path) {
  const abort = new AbortController();
  try {
    await request(path, { signal: abort.signal });
    return "";
  } catch (error) {
    return error.status > 0 && error.status !== 401 ? error.message : "";
  } finally {
    abort.abort();
  }
}

/**
 * Takes the token out of the address bar, if one is there. The next `openSession` logs in with it.
 * The printed address is `http://127.0.0.1:PORT/#token=TOKEN`.
 */
export function takeTokenFromAddress() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return false;
  fromAddress = found[1];
  history.replaceState(null, "", `${location.pathname}#/`);
  return true;
}

/**
 * Returns the session. A token from the address wins. Otherwise the token that this tab has kept logs in again, if the
 * daemon does not know the session: it was restarted.
 * @returns {Promise<object | null>} null: a person must log in.
 * @throws {ApiError} The daemon does not answer, or answers with another error.
 */
export async function openSession() {
  let token = fromAddress;
  fromAddress = "";
  try {
    if (!token) return await getJson("api/session");
  } catch (error) {
    passUnless401(error);
    token = sessionStorage.getItem(TOKEN);
  }
  if (!token) return null;
  try {
    await login(token);
  } catch (error) {
    passUnless401(error);
    sessionStorage.removeItem(TOKEN);
    return null;
  }
  return getJson("api/session");
}

function passUnless401(error) {
  if (error.status !== 401) throw error;
}

/**
 * Exchanges a token for a session.
 * @throws {ApiError} 401: no such token.
 */
export async function login(token) {
  const answer = await postJson("api/login", { token });
  sessionStorage.setItem(TOKEN, token);
  return answer;
}

/** Ends the session of this browser and forgets the token. */
export async function logout() {
  sessionStorage.removeItem(TOKEN);
  await postJson("api/logout");
}
