/** Hash routes: which page the address names, and the addresses of pages. */

import { useEffect, useState } from "./html.js";

const PAGES = { ranks: "ranks", incidents: "incidents", checkpoints: "checkpoints" };

/**
 * Reads a hash.
 * @param {string} hash As in `location.hash`: `#/runs/llama/incidents/7`.
 * @returns {{page: string, run?: string, incident?: string, rank?: number, generation?: number}} Page is one of runs, run, ranks, incidents,
 *     incident, checkpoints, holdfast, unknown.
 */
export function readHash(hash) {
  const parts = hash.replace(/^#?\/?/, "").split("/").filter(Boolean).map(decoded);
  if (parts.length === 0) return { page: "runs" };
  if (parts[0] === "holdfast" && parts.length === 1) return { page: "holdfast" };
  if (parts[0] !== "runs" || parts.length < 2) return { page: "unknown" };
  const run = parts[1];
  if (parts.length === 2) return { page: "run", run };
  if (parts[2] === "incidents" && parts.length === 4) return { page: "incident", run, incident: parts[3] };
  if (parts[2] === "ranks" && parts.length === 4 && /^\d+$/.test(parts[3])) {
    return { page: "ranks", run, rank: Number(parts[3]) };
  }
  if (parts[2] === "ranks" && parts[4] === "generations" && parts.length === 6
    && /^\d+$/.test(parts[3]) && /^\d+$/.test(parts[5])) {
    return { page: "ranks", run, rank: Number(parts[3]), generation: Number(parts[5]) };
  }
  const page = parts.length === 3 ? PAGES[parts[2]] : undefined;
  return page ? { page, run } : { page: "unknown" };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Returns the address of a page of a run, such as `#/runs/llama/ranks`. */
export function runHref(run, ...rest) {
  return `#/runs/${[run, ...rest].map(encodeURIComponent).join("/")}`;
}

/** Returns the route of the address bar, and renders again when it changes. */
export function useRoute() {
  const [, setTurn] = useState(0);
  useEffect(() => {
    const follow = () => setTurn((old) => old + 1);
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  // Read now: a token may have been taken out of the address since the event.
  return readHash(location.hash);
}
