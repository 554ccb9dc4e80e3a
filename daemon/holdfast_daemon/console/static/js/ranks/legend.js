/** What the colours of the map mean. */

import { html, useEffect, useState } from "../html.js";
import { shownTheme, THEME_CHANGED } from "../theme.js";
import { palette, rampGradient, valueWords } from "./palette.js";

/** Shows the words of a legend with their colours, or its range with the numbers at both ends. */
export function Legend({ legend }) {
  const [theme, setTheme] = useState(shownTheme());
  useEffect(() => {
    const follow = () => setTheme(shownTheme());
    window.addEventListener(THEME_CHANGED, follow);
    return () => window.removeEventListener(THEME_CHANGED, follow);
  }, []);
  const { colours } = palette(legend, theme);
  if (legend.kind === "range") {
    return html`<span class="legend"><span>${valueWords(legend.low, legend)}</span>
      <span class="ramp" style=${{ background: rampGradient() }}></span><span>${valueWords(legend.high, legend)}</span>
      <span class="cell" style=${{ background: colours.at(-1) }}></span>unknown</span>
      ${legend.note && html`<span class="quiet">${legend.note}</span>`}`;
  }
  return html`<ul class="legend">${[...legend.words, "unknown"].filter((word, index, all) => all.indexOf(word) === index)
    .map((word) => html`<li key=${word}><span class="cell"
      style=${{ background: colours[legend.words.indexOf(word)] ?? colours.at(-1) }}></span>${word.replaceAll("_", " ")}</li>`)}
  </ul>`;
}
