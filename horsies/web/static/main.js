// Set up a page. The server renders all content; open pages fetch it again when data changed.
import { actions } from "./actions.js";
import { keys } from "./keys.js";
import { live } from "./live.js";
import { plots } from "./plots.js";

const root = document.documentElement;

function theme() {
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("horsies-theme", root.dataset.theme);
  });
}

// Update relative times such as "12 s ago" every second.
function ages() {
  const units = [[86400, "d", 2], [3600, "h", 2], [60, "min", 1]];
  const format = (seconds) => {
    for (const [size, unit, least] of units) if (seconds >= least * size) return `${Math.floor(seconds / size)} ${unit}`;
    return `${Math.round(seconds)} s`;
  };
  setInterval(() => {
    for (const each of document.querySelectorAll("time[data-since]")) {
      const seconds = Date.now() / 1000 - Number(each.dataset.since);
      each.textContent = seconds >= 0 ? `${format(seconds)} ago` : `in ${format(-seconds)}`;
    }
  }, 1000);
}

theme();
ages();
plots();
keys();
actions(live());
