/** Starts the console: the session first, then the page that the address names. */

import { openSession, takeTokenFromAddress } from "./api.js";
import { setZone } from "./format.js";
import { html, render, useEffect, useState } from "./html.js";
import { LOGIN_NEEDED } from "./live.js";
import { CheckpointsPage } from "./pages/checkpoints.js";
import { HoldfastPage } from "./pages/holdfast.js";
import { IncidentPage } from "./pages/incident.js";
import { IncidentsPage } from "./pages/incidents.js";
import { LoginPage } from "./pages/login.js";
import { RanksPage } from "./pages/ranks.js";
import { RunPage } from "./pages/run.js";
import { RunsPage } from "./pages/runs.js";
import { Shell } from "./parts/shell.js";
import { Loading, Problem } from "./parts/states.js";
import { useRoute } from "./router.js";
import { startTheme } from "./theme.js";

const PAGES = {
  runs: RunsPage, run: RunPage, ranks: RanksPage, incidents: IncidentsPage, incident: IncidentPage,
  checkpoints: CheckpointsPage, holdfast: HoldfastPage,
};

function Console() {
  const route = useRoute();
  const [session, setSession] = useState(undefined);
  const [error, setError] = useState("");
  const [hasLeft, setHasLeft] = useState(false);
  const open = () => openSession().then(
    (found) => { if (found) setZone(found.zone); setSession(found); setError(""); setHasLeft((old) => old && !found); },
    (failure) => setError(failure.message),
  );
  useEffect(() => {
    open();
    const ask = () => setSession(null);
    const take = () => takeTokenFromAddress() && open();
    window.addEventListener(LOGIN_NEEDED, ask);
    window.addEventListener("hashchange", take);
    return () => {
      window.removeEventListener(LOGIN_NEEDED, ask);
      window.removeEventListener("hashchange", take);
    };
  }, []);
  useEffect(() => {
    if (!error || session !== undefined) return undefined;
    const retry = setInterval(open, 3000);
    return () => clearInterval(retry);
  }, [error, session]);

  if (session === null) return html`<${LoginPage} onDone=${open} follows=${!hasLeft} />`;
  if (session === undefined) {
    return html`<main class="boot">${error
      ? html`<${Problem} title="The console cannot reach its daemon"
          text=${`${error}. This page tries again every 3 s. If the run has ended, its console has too:`
            + " `holdfast console` serves it again."} />`
      : html`<${Loading} what="the session" />`}</main>`;
  }
  const leave = () => { setSession(null); setHasLeft(true); };
  const Page = PAGES[route.page];
  return html`<${Shell} route=${route} session=${session} onLogout=${leave}>
    ${Page
      ? html`<${Page} key=${`${route.page} ${route.run} ${route.incident}`} ...${route} session=${session} />`
      : html`<${Problem} title="There is no such page" text="Choose a run from the list of runs." />`}
  <//>`;
}

startTheme();
takeTokenFromAddress();
const place = document.getElementById("app");
place.replaceChildren();
render(html`<${Console} />`, place);
