// The tooltip of a plot: the values at the pointer.
import { inUnit } from "./units.js";

const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

export function plots() {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  document.addEventListener("pointermove", (event) => {
    const frame = event.target.closest?.(".plot .frame");
    tip.hidden = !frame;
    if (frame) show(tip, frame, event);
  });
}

function show(tip, frame, event) {
  const plot = JSON.parse(frame.closest(".plot").dataset.plot);
  const box = frame.querySelector("svg").getBoundingClientRect();
  const count = plot.lines[0].values.length;
  const place = Math.max(0, Math.min(count - 1, Math.round(((event.clientX - box.left) / box.width) * (count - 1))));
  const lines = plot.lines.map((line) => {
    const row = document.createElement("div");
    row.className = line.style;
    row.textContent = `${line.label}: ${inUnit(line.values[place], plot.unit)}`;
    return row;
  });
  const head = document.createElement("b");
  head.textContent = `${clock(plot.since + place * plot.step)} UTC`;
  tip.replaceChildren(head, ...lines);
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY + 14}px`;
}
