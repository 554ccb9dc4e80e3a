/** State of components that follows the daemon: documents that are fetched, and streams. */

import { getJson } from "./api.js";
import { forgetAsker, noteAnswer, noteFailure, noteRuns } from "./connection.js";
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { LOGIN_NEEDED, openStream } from "./live.js";
import { mergePatch } from "./merge_patch.js";

const AGAIN_MS = 3000;

/**
 * Fetches a JSON document, again when the path or `version` changes, and while the daemon does not answer. The old one
 * stays until the new one is there. A `status` of 0 with an error: the daemon did not answer.
 * @param {string | null} path null: nothing to fetch.
 * @param {unknown} [version]
 * @returns {{data: any, error: string, status: number, reload: () => void}}
 */
export function useJson(path, version) {
  const [state, setState] = useState({ data: null, error: "", status: 0, path: null });
  const [turn, setTurn] = useState(0);
  const who = useRef({});
  useEffect(() => () => forgetAsker(who.current), [path]);
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    getJson(path, abort.signal).then(
      (data) => {
        noteAnswer(who.current);
        setState({ data, error: "", status: 200, path });
      },
      (error) => {
        if (error.name === "AbortError") return;
        if (error.status === 401) window.dispatchEvent(new Event(LOGIN_NEEDED));
        if (error.status === 0) noteFailure(who.current, error.message);
        else noteAnswer(who.current);
        const { message, status } = error;
        setState((old) => ({ data: old.path === path ? old.data : null, error: message, status, path }));
      },
    );
    return () => abort.abort();
  }, [path, version, turn]);
  const reload = useCallback(() => setTurn((old) => old + 1), []);
  const unanswered = isUnanswered(state);
  useEffect(() => {
    if (!unanswered) return undefined;
    const timer = setInterval(() => !document.hidden && reload(), AGAIN_MS);
    return () => clearInterval(timer);
  }, [unanswered]);
  const current = state.path === path ? state : { data: null, error: "", status: 0 };
  return { ...current, reload };
}

/** Returns whether a fetched document lacks an answer of the daemon: the banner of the connection says so. */
export function isUnanswered({ error, status }) {
  return error !== "" && status === 0;
}

/**
 * Follows a stream whose first event is a whole document.
 * @param {string} path
 * @param {{whole?: string, others?: Record<string, (data: any) => void>}} [options] Name of the event that holds the
 *     document (`frame`); handlers of other events, of which the newest are called.
 * @returns {{data: any, gone: boolean}}
 */
export function useStream(path, { whole = "frame", others = {} } = {}) {
  const [data, setData] = useState(null);
  const [gone, setGone] = useState(false);
  const newest = useRef(others);
  newest.current = others;
  useEffect(() => {
    setData(null);
    setGone(false);
    const handlers = {
      [whole]: setData,
      change: (patch) => setData((old) => mergePatch(old, patch)),
      gone: () => setGone(true),
    };
    for (const name of Object.keys(newest.current)) handlers[name] = (event) => newest.current[name](event);
    return openStream(path, handlers);
  }, [path, whole]);
  useEffect(() => {
    if (data) noteRuns(data.runs ?? [data]);
  }, [data]);
  return { data, gone };
}
