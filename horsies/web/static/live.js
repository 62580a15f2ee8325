// Keeps the open page up to date: on news from the server the page is fetched again and only what differs is changed.
import { morph } from "./morph.js";

const base = document.documentElement.dataset.base;
const PAUSE = 1000, AGAIN = 2500;

export function live() {
  const main = document.getElementById("main"), sign = document.getElementById("live");
  const banner = document.getElementById("banner");
  let loading = false, wanted = false, trouble = Boolean(main.querySelector(".trouble")), last = 0;

  function say(state, text) {
    sign.className = `live ${state}`;
    sign.querySelector("span").textContent = text;
  }

  function tell(message) {
    banner.textContent = message ?? "";
    banner.hidden = !message;
  }

  async function load() {
    const answer = await fetch(location.href, { headers: { "X-Horsies-Fragment": "1" }, redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.status === 401) return location.reload();
    const html = await answer.text();
    if (answer.status === 503) throw new Error(new DOMParser().parseFromString(html, "text/html").querySelector("h1")?.textContent);
    const fresh = document.createElement("main");
    fresh.innerHTML = html; // rendered and escaped by the server; scripts in it would not run
    morph(main, fresh);
    document.dispatchEvent(new CustomEvent("fresh"));
  }

  async function refresh() {
    if (loading) return void (wanted = true);
    loading = true;
    wanted = false;
    try {
      await load();
      trouble = false;
      tell(null);
      say("on", "live");
    } catch (error) {
      trouble = true;
      say("off", "waiting");
      const problem = error instanceof TypeError ? "The dashboard does not answer." : error.message;
      tell(`${problem || "Something is wrong."} You see how it was at ${new Date(last || performance.timeOrigin).toLocaleTimeString()}; trying again.`);
    }
    if (!trouble) last = Date.now();
    setTimeout(() => {
      loading = false;
      if (wanted || trouble || main.querySelector("[data-again]")) refresh();
    }, trouble ? AGAIN : PAUSE);
  }

  // A browser opens six connections to a server and no more: a page that nobody sees gives its own back.
  let source = null;
  function follow() {
    source?.close();
    source = null;
    if (document.hidden) return;
    const mine = (source = new EventSource(`${base}/events`));
    mine.addEventListener("open", () => say("on", "live"));
    mine.addEventListener("changed", refresh);
    mine.addEventListener("trouble", refresh);
    // A stream ends now and then, and the browser opens the next: only one that stays away is worth a word.
    mine.addEventListener("error", () => setTimeout(() => source === mine && mine.readyState !== EventSource.OPEN && say("off", "waiting"), AGAIN));
  }
  document.addEventListener("visibilitychange", follow);
  follow();
  if (trouble || main.querySelector("[data-again]")) setTimeout(refresh, trouble ? AGAIN : PAUSE);
  return refresh;
}
