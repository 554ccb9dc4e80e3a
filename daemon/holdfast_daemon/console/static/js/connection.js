/** Whether the daemon answers, and what is known of its runs if it does not: all parts of the page share this. */

import { useEffect, useState } from "./html.js";

const failing = new Set();
const listeners = new Set();
const runs = new Map();
let lost = null;
let isFarewell = false;

function changed() {
  listeners.forEach((listen) => listen());
}

/** Notes that `who` (a stream or a document) got an answer. The connection works once nothing else fails. */
export function noteAnswer(who) {
  failing.delete(who);
  if (failing.size > 0 || lost === null) return;
  lost = null;
  isFarewell = false;
  changed();
}

/** Notes that `who` gets no answer, and why; or that the daemon answers, and refuses what `who` asks for. */
export function noteFailure(who, reason, isRefused = false) {
  failing.add(who);
  if (lost?.reason === reason) return;
  lost = { since: lost?.since ?? Date.now(), reason, isRefused };
  changed();
}

/** Forgets `who`, which asks no more. Whether the daemon answers is then not known: what was known stays. */
export function forgetAsker(who) {
  failing.delete(who);
}

/** Notes how runs are: rows with `run`, `state` and `state_text`. */
export function noteRuns(rows) {
  rows.forEach((row) => runs.set(row.run, { run: row.run, state: row.state, text: row.state_text }));
}

/** Notes that the daemon ends, with the last state of its runs. */
export function noteFarewell({ runs: rows }) {
  isFarewell = true;
  noteRuns(rows);
  changed();
}

/**
 * Returns null while the daemon gives what the page asks for, else since when (ms) it does not, the reason, whether it
 * answers and refuses, whether it said that it ends, and how its runs were.
 * @returns {{since: number, reason: string, isRefused: boolean, isFarewell: boolean,
 *     runs: {run: string, state: string, text: string}[]} | null}
 */
export function useLostConnection() {
  const [, setTurn] = useState(0);
  useEffect(() => {
    const listen = () => setTurn((old) => old + 1);
    listeners.add(listen);
    return () => listeners.delete(listen);
  }, []);
  return lost && { ...lost, isFarewell, runs: [...runs.values()] };
}
