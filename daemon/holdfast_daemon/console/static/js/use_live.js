/** State of components that follows the daemon: documents that are fetched, and streams. */

import { getJson } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { LOGIN_NEEDED, openStream } from "./live.js";
import { mergePatch } from "./merge_patch.js";

/**
 * Fetches a JSON document, again when the path or `version` changes. The old one stays until the new one is there.
 * @param {string | null} path null: nothing to fetch.
 * @param {unknown} [version]
 * @returns {{data: any, error: string, status: number, reload: () => void}}
 */
export function useJson(path, version) {
  const [state, setState] = useState({ data: null, error: "", status: 0, path: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    getJson(path, abort.signal).then(
      (data) => setState({ data, error: "", status: 200, path }),
      (error) => {
        if (error.name === "AbortError") return;
        if (error.status === 401) window.dispatchEvent(new Event(LOGIN_NEEDED));
        setState((old) => ({ data: old.path === path ? old.data : null, error: error.message, status: error.status, path }));
      },
    );
    return () => abort.abort();
  }, [path, version, turn]);
  const reload = useCallback(() => setTurn((old) => old + 1), []);
  const current = state.path === path ? state : { data: null, error: "", status: 0 };
  return { ...current, reload };
}

/**
 * Follows a stream whose first event is a whole document.
 * @param {string} path
 * @param {{whole?: string, others?: Record<string, (data: any) => void>}} [options] Name of the event that holds the
 *     document (`frame`); handlers of other events, of which the newest are called.
 * @returns {{data: any, lost: {since: number, reason: string} | null, gone: boolean}}
 */
export function useStream(path, { whole = "frame", others = {} } = {}) {
  const [data, setData] = useState(null);
  const [lost, setLost] = useState(null);
  const [gone, setGone] = useState(false);
  const newest = useRef(others);
  newest.current = others;
  useEffect(() => {
    setData(null);
    setLost(null);
    setGone(false);
    const handlers = {
      [whole]: setData,
      change: (patch) => setData((old) => mergePatch(old, patch)),
      gone: () => setGone(true),
    };
    for (const name of Object.keys(newest.current)) handlers[name] = (event) => newest.current[name](event);
    return openStream(path, handlers, setLost);
  }, [path, whole]);
  return { data, lost, gone };
}
