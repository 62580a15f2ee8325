// Plots: the values at the pointer, in all plots of the page at once, and a click that leads to the tasks behind a step.
import { inUnit } from "./units.js";

const clock = (seconds, step) => new Date(seconds * 1000).toISOString().slice(11, step < 60 ? 19 : 16);
const SHIFT = 14;

export function plots() {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  let pointer = null;
  const follow = () => {
    const frame = document.elementFromPoint(pointer.clientX, pointer.clientY)?.closest(".plot .frame");
    tip.hidden = !frame;
    if (frame) show(tip, frame, pointer);
    else for (const each of document.querySelectorAll(".cursor:not([hidden])")) each.hidden = true;
  };
  document.addEventListener("pointermove", (event) => {
    pointer = event;
    follow();
  });
  // New figures come with new plots, below a pointer that has not moved.
  document.addEventListener("fresh", () => pointer && follow());
  document.addEventListener("click", (event) => {
    const frame = event.target.closest?.(".plot .frame.leads");
    if (!frame) return;
    const { plot, place } = at(frame, event.clientX);
    location.assign(address(plot, place));
  });
}

function at(frame, x) {
  const plot = JSON.parse(frame.closest(".plot").dataset.plot), box = frame.getBoundingClientRect();
  const count = plot.lines[0][2].length;
  return { plot, count, place: Math.max(0, Math.min(count - 1, Math.round(((x - box.left) / box.width) * (count - 1)))) };
}

// The tasks that ended in a step.
function address(plot, place) {
  const from = plot.since + place * plot.step, time = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19) + "Z";
  const [path, query] = plot.target.split("?");
  const wanted = new URLSearchParams(query);
  wanted.set("from", time(from));
  wanted.set("until", time(from + plot.step));
  return `${path}?${wanted}`;
}

function show(tip, frame, event) {
  const { plot, count, place } = at(frame, event.clientX);
  const lines = plot.lines.map(([label, style, values]) => {
    const row = document.createElement("div"), name = document.createElement("span"), value = document.createElement("b"), mark = document.createElement("i");
    name.className = style;
    name.append(mark, label);
    value.textContent = inUnit(values[place], plot.unit);
    row.append(name, value);
    return row;
  });
  const head = document.createElement("b");
  head.textContent = `${clock(plot.since + place * plot.step, plot.step)} UTC`;
  tip.replaceChildren(head, ...lines);
  if (plot.target) {
    const hint = document.createElement("small");
    hint.textContent = "Click to see these tasks";
    tip.append(hint);
  }
  const left = event.clientX + SHIFT + tip.offsetWidth > innerWidth - 8 ? event.clientX - SHIFT - tip.offsetWidth : event.clientX + SHIFT;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.min(event.clientY + SHIFT, innerHeight - tip.offsetHeight - 8)}px`;
  for (const each of document.querySelectorAll(".plot .frame")) {
    const cursor = each.querySelector(".cursor");
    cursor.hidden = false;
    cursor.style.left = `${(100 * place) / Math.max(1, count - 1)}%`;
  }
}
