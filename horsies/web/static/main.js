// Set up a page. The server renders all content; open pages fetch it again when data changed.
import { actions, toast } from "./actions.js";
import { bulk } from "./bulk.js";
import { forms } from "./forms.js";
import { graph } from "./graph.js";
import { keys } from "./keys.js";
import { lists } from "./lists.js";
import { live } from "./live.js";
import { phone } from "./phone.js";
import { plots } from "./plots.js";
import { schedules } from "./schedules.js";
import { search } from "./search.js";
import { task } from "./task.js";
import { ago } from "./units.js";

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
  setInterval(() => {
    for (const each of document.querySelectorAll("time[data-since]")) {
      const text = ago(Date.now() / 1000 - Number(each.dataset.since));
      if (each.textContent !== text) each.textContent = text;
    }
  }, 1000);
}

theme();
ages();
plots();
keys();
const refresh = live();
actions(refresh);
forms(refresh, toast);
graph();
task(refresh);
schedules(refresh);
search();
phone();
bulk(refresh);
lists();
