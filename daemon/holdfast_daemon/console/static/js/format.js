/** Numbers, sizes, durations and times as people read them. A missing value is a dash. */

const DASH = "–";

/** Returns whether a value is a number that can be shown. */
export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Returns a whole number with separators: 12,345. */
export function whole(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en-US") : DASH;
}

/** Returns a number with about `digits` significant digits: 2.346, 0.00031, 1.2e-7. */
export function figure(value, digits = 4) {
  if (!isNumber(value)) return DASH;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-4 || size >= 1e9) return value.toExponential(digits - 2);
  if (size >= 10 ** digits) return whole(value);
  return String(Number(value.toPrecision(digits)));
}

/** Returns a number with a suffix: 12.3k, 4.56M. */
export function short(value) {
  if (!isNumber(value)) return DASH;
  for (const [limit, suffix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= limit) return `${figure(value / (limit === 1e4 ? 1e3 : limit), 3)}${suffix}`;
  }
  return figure(value, 4);
}

/** Returns a size in binary units: 1.5 GiB. */
export function bytes(value) {
  if (!isNumber(value)) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let rest = value;
  let unit = 0;
  while (rest >= 1024 && unit < units.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${unit ? figure(rest, 3) : whole(rest)} ${units[unit]}`;
}

/** Returns a share as percent: 97.3 %. */
export function percent(ratio) {
  if (!isNumber(ratio)) return DASH;
  const value = 100 * ratio;
  return `${value > 0 && value < 0.1 ? "<0.1" : value.toFixed(1)} %`;
}

/** Returns a duration with its two largest units: 3 d 4 h, 12 min 5 s, 1.25 s, 320 ms. */
export function duration(seconds) {
  if (!isNumber(seconds)) return DASH;
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${figure(1000 * seconds, 3)} ms`;
  if (seconds < 60) return `${figure(seconds, 3)} s`;
  const all = Math.round(seconds);
  const parts = [[Math.floor(all / 86400), "d"], [Math.floor(all / 3600) % 24, "h"],
    [Math.floor(all / 60) % 60, "min"], [all % 60, "s"]];
  const first = parts.findIndex(([count]) => count > 0);
  return parts.slice(first, first + 2).filter(([count]) => count > 0).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

// The clock of all pages is the daemon's: its sentences, the logs and the other commands have it, too.
let zone = { name: "UTC", offset_s: 0 };

/** Sets the zone in which times are shown: `{name, offset_s}`, seconds east of UTC. */
export function setZone(found) {
  zone = found;
}

/** Returns a time of day in the daemon's zone, with the date unless it is today: 14:03:21, 3 Mar 14:03:21. */
export function clock(unixS) {
  if (!isNumber(unixS)) return DASH;
  const there = (unixMs) => new Date(unixMs + 1000 * zone.offset_s);
  const date = there(1000 * unixS);
  const time = date.toLocaleTimeString("en-GB", { timeZone: "UTC" });
  if (date.toISOString().slice(0, 10) === there(Date.now()).toISOString().slice(0, 10)) return time;
  return `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" })} ${time}`;
}

/** Returns the exact time with its zone, for a tooltip. */
export function exactTime(unixS) {
  if (!isNumber(unixS)) return "";
  return `${new Date(1000 * unixS).toISOString()} (shown in ${zone.name})`;
}

/** Returns ranks as ranges: "3, 7-12, 40". */
export function rankRanges(ranks) {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const ranges = [];
  for (const rank of sorted) {
    const newest = ranges.at(-1);
    if (newest && rank === newest[1] + 1) newest[1] = rank;
    else ranges.push([rank, rank]);
  }
  return ranges.map(([low, high]) => {
    if (low === high) return `${low}`;
    return high === low + 1 ? `${low}, ${high}` : `${low}-${high}`;
  }).join(", ");
}

/** Returns "rank 3" or "ranks 3-5". */
export function rankWords(ranks) {
  return `${new Set(ranks).size === 1 ? "rank" : "ranks"} ${rankRanges(ranks)}`;
}

/** Returns a name of the code as words: "hung_collective" is "hung collective". */
export function words(name) {
  return String(name ?? "").replaceAll("_", " ");
}

/** Returns a count with its noun: "1 restart", "3 restarts". */
export function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}
