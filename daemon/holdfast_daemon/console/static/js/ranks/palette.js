/** Colours of the cells of the map of ranks. They differ in lightness too, for people who do not see all colours. */

import { duration, figure } from "../format.js";

const UNKNOWN = { dark: "#3a414c", light: "#d3d8df" };

// Words that mean the same in every legend; others take the next colour of the list.
const KNOWN = {
  ok: { dark: "#34728f", light: "#9cc8dc" },
  starting: { dark: "#7d78c2", light: "#b4aee6" },
  waiting: { dark: "#8d8560", light: "#e6dcae" },
  stalled: { dark: "#f0c04c", light: "#e3a300" },
  culprit: { dark: "#ff6b4a", light: "#c8371b" },
  exited: { dark: "#f5f0ea", light: "#33302d" },
  left: { dark: "#4f7a63", light: "#8fb39f" },
  unknown: UNKNOWN,
};
const OTHERS = {
  dark: ["#56b4e9", "#e69f00", "#2fb594", "#f0e442", "#cc79a7", "#d55e00", "#8a86c8", "#9aa4b2"],
  light: ["#0072b2", "#d98f00", "#009e73", "#cfc01a", "#b95f91", "#c04f00", "#5b56a8", "#6b7480"],
};
// Stops of viridis: lightness grows evenly.
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const SHADES = 48;

const RAMP = Array.from({ length: SHADES }, (_, index) => {
  const place = (index / (SHADES - 1)) * (STOPS.length - 1);
  const low = STOPS[Math.min(Math.floor(place), STOPS.length - 2)];
  const high = STOPS[STOPS.indexOf(low) + 1];
  const share = place - STOPS.indexOf(low);
  return `rgb(${low.map((value, channel) => Math.round(value + share * (high[channel] - value))).join(" ")})`;
});

/**
 * Returns the colours of a legend and the way from a value to its colour.
 * @param {object} legend As the API sends it.
 * @param {"dark" | "light"} theme
 * @returns {{colours: string[], indexOf: (value: number | null) => number}} The last colour is that of unknown values.
 */
export function palette(legend, theme) {
  if (legend.kind === "words") {
    let next = 0;
    const colours = legend.words.map((word) => KNOWN[word]?.[theme] ?? OTHERS[theme][next++ % OTHERS[theme].length]);
    const unknown = colours.push(UNKNOWN[theme]) - 1;
    return { colours, indexOf: (value) => (value === null || value >= unknown ? unknown : value) };
  }
  const span = legend.high - legend.low || 1;
  return {
    colours: [...RAMP, UNKNOWN[theme]],
    indexOf: (value) => {
      if (value === null) return SHADES;
      return Math.min(Math.max(Math.round(((value - legend.low) / span) * (SHADES - 1)), 0), SHADES - 1);
    },
  };
}

/** Returns the ramp as the stops of a CSS gradient. */
export function rampGradient() {
  return `linear-gradient(to right, ${STOPS.map((stop) => `rgb(${stop.join(" ")})`).join(", ")})`;
}

/** Returns the value of a rank in words. One that is behind has a value like that of any healthy rank. */
export function rankWords({ values, legend, behind, ranks }, rank) {
  const value = valueWords(values[ranks.indexOf(rank)], legend);
  if (!behind.includes(rank)) return value;
  return value === "ok" ? "behind" : `${value}, behind`;
}

/** Returns a value in words, by its legend. */
export function valueWords(value, legend) {
  if (value === null || value === undefined) return "unknown";
  if (legend.kind === "words") return legend.words[value] ?? "unknown";
  if (legend.unit === "s") return duration(value);
  return `${figure(value, 3)} ${legend.unit}`;
}
