/** Live updates: server-sent events that reconnect, and note whether they arrive. */

import { getJson, openSession, refusalOf } from "./api.js";
import { forgetAsker, noteAnswer, noteFailure, noteFarewell } from "./connection.js";

const FIRST_RETRY_MS = 1000;
const LAST_RETRY_MS = 10000;
const CHECK_MS = 15000;

/** Name of the event on `window` that asks for the login page. */
export const LOGIN_NEEDED = "holdfast-login-needed";

/**
 * Opens a stream and keeps it open until the returned function is called.
 *
 * A hidden page closes its streams, because a browser allows few connections to one host. A stream without events is
 * checked with a request: a connection that broke silently would look alive.
 * @param {string} path
 * @param {Record<string, (data: any) => void>} handlers By the name of the event.
 * @returns {() => void}
 */
export function openStream(path, handlers) {
  const who = {};
  let source = null;
  let retry = 0;
  let wait = FIRST_RETRY_MS;
  let heard = 0;
  let closed = false;

  const stop = () => {
    clearTimeout(retry);
    source?.close();
    source = null;
  };
  const works = () => {
    heard = Date.now();
    wait = FIRST_RETRY_MS;
    noteAnswer(who);
  };
  const fail = (reason, isRefused = false) => {
    stop();
    if (closed || document.hidden) return;
    noteFailure(who, reason, isRefused);
    retry = setTimeout(reopen, wait);
    wait = Math.min(2 * wait, LAST_RETRY_MS);
  };
  const reopen = async () => {
    try {
      if (await openSession()) connect();
      else window.dispatchEvent(new Event(LOGIN_NEEDED));
    } catch (error) {
      fail(error.message);
    }
  };
  const connect = () => {
    if (closed || document.hidden) return;
    stop();
    source = new EventSource(path);
    source.onopen = works;
    source.onerror = async () => {
      // An EventSource does not say whether it got no answer, or one that refuses it.
      const answered = source?.readyState === EventSource.CLOSED ? await refusalOf(path) : "";
      fail(answered || "the daemon does not answer", answered !== "");
    };
    for (const [name, handle] of Object.entries({ ...handlers, farewell: noteFarewell })) {
      source.addEventListener(name, (event) => {
        works();
        handle(JSON.parse(event.data));
      });
    }
  };
  const check = async () => {
    if (!source || Date.now() - heard < CHECK_MS) return;
    try {
      await getJson("api/session");
    } catch (error) {
      fail(error.message);
    }
  };
  const onVisibility = () => (document.hidden ? stop() : connect());

  document.addEventListener("visibilitychange", onVisibility);
  const checks = setInterval(check, CHECK_MS);
  connect();
  return () => {
    closed = true;
    stop();
    forgetAsker(who);
    clearInterval(checks);
    document.removeEventListener("visibilitychange", onVisibility);
  };
}
