// The graph of a workflow: fit, zoom and pan, a map of the whole, and a panel for the chosen node.
// The view is the viewBox of the SVG, which live updates leave alone (`data-own`).
import { morph } from "./morph.js";

const STEP = 1.3, MOST_ZOOM = 2, READABLE = 0.45, DRAG = 4;

let view = null; // x, y and the scale, in pixels per unit
let whole = "";

const frame = () => document.querySelector("[data-graph]");
const size = () => {
  const box = frame().querySelector(".canvas").getBoundingClientRect();
  return { width: Math.max(box.width, 1), height: Math.max(box.height, 1) };
};
const total = () => ({ width: Number(frame().dataset.width), height: Number(frame().dataset.height) });

function draw() {
  const { width, height } = size(), all = total();
  const shown = { width: width / view.scale, height: height / view.scale };
  const hold = (at, part, most) => (part >= most ? (most - part) / 2 : Math.min(Math.max(at, 0), most - part));
  view.x = hold(view.x, shown.width, all.width);
  view.y = hold(view.y, shown.height, all.height);
  frame().querySelector(".canvas").setAttribute("viewBox", `${view.x} ${view.y} ${shown.width} ${shown.height}`);
  const mark = frame().querySelector(".minimap .seen");
  if (!mark) return;
  for (const [name, value] of Object.entries({ x: view.x, y: view.y, ...shown })) mark.setAttribute(name, value);
}

function fitScale() {
  const { width, height } = size(), all = total();
  return Math.min(1, width / all.width, height / all.height);
}

function fit() {
  view = { x: 0, y: 0, scale: fitScale() };
  draw();
}

function centre(x, y) {
  const { width, height } = size();
  view.x = x - width / view.scale / 2;
  view.y = y - height / view.scale / 2;
  draw();
}

// Zoom around a point of the frame, by default its middle.
function zoom(factor, at) {
  const { width, height } = size(), point = at ?? { x: width / 2, y: height / 2 };
  const scale = Math.min(MOST_ZOOM, Math.max(fitScale(), view.scale * factor));
  view.x += point.x / view.scale - point.x / scale;
  view.y += point.y / view.scale - point.y / scale;
  view.scale = scale;
  draw();
}

// Show the whole graph if its labels can be read then; otherwise the node that needs attention, else the first.
function start() {
  fit();
  if (view.scale >= READABLE) return;
  view.scale = 0.8;
  const node = ["chosen", "failed", "running", "enqueued"].map((state) => frame().querySelector(`.node.${state} rect`)).find(Boolean);
  if (node) centre(Number(node.getAttribute("x")) + 100, Number(node.getAttribute("y")) + 23);
  else centre(0, total().height / 2);
}

// Show the panel of a node, whose address is shareable.
async function choose(href) {
  const answer = await fetch(href, { headers: { "X-Horsies-Fragment": "1" } });
  if (!answer.ok) return location.assign(href);
  history.replaceState(null, "", href);
  const fresh = document.createElement("main");
  fresh.innerHTML = await answer.text(); // rendered and escaped by the server
  morph(document.getElementById("main"), fresh);
  document.dispatchEvent(new CustomEvent("fresh"));
  document.querySelector(".node-panel h3")?.focus();
}

function point(event) {
  const box = frame().getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function pan(event) {
  if (event.button || event.target.closest(".minimap")) return;
  const from = { x: event.clientX, y: event.clientY }, at = { ...view }, target = frame();
  let moved = false;
  const move = (now) => {
    const dx = now.clientX - from.x, dy = now.clientY - from.y;
    if (!moved && Math.hypot(dx, dy) < DRAG) return;
    if (!moved) target.setPointerCapture(event.pointerId);
    moved = true;
    view.x = at.x - dx / view.scale;
    view.y = at.y - dy / view.scale;
    draw();
  };
  const end = () => {
    target.removeEventListener("pointermove", move);
    // The click that ends a drag opens nothing.
    if (moved) target.addEventListener("click", (click) => { click.preventDefault(); click.stopPropagation(); }, { once: true, capture: true });
  };
  target.addEventListener("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) target.addEventListener(name, end, { once: true });
}

function jump(event) {
  const map = event.target.closest(".minimap");
  const box = map.getBoundingClientRect(), all = total();
  centre(((event.clientX - box.left) / box.width) * all.width, ((event.clientY - box.top) / box.height) * all.height);
}

const KEYS = {
  "+": () => zoom(STEP), "=": () => zoom(STEP), "-": () => zoom(1 / STEP), 0: fit,
  ArrowLeft: () => { view.x -= 60 / view.scale; draw(); }, ArrowRight: () => { view.x += 60 / view.scale; draw(); },
  ArrowUp: () => { view.y -= 60 / view.scale; draw(); }, ArrowDown: () => { view.y += 60 / view.scale; draw(); },
};
const TOOLS = { in: () => zoom(STEP), out: () => zoom(1 / STEP), fit };

function refresh() {
  if (!frame()) return;
  const now = `${frame().dataset.width} ${frame().dataset.height}`;
  if (whole !== now) start();
  whole = now;
  draw();
}

export function graph() {
  if (!frame()) return;
  refresh();
  document.addEventListener("fresh", refresh);
  addEventListener("resize", () => (view.scale < fitScale() ? fit() : draw()));
  frame().addEventListener("pointerdown", pan);
  frame().addEventListener("click", (event) => event.target.closest(".minimap") && jump(event));
  frame().addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    zoom(event.deltaY < 0 ? STEP : 1 / STEP, point(event));
  }, { passive: false });
  frame().addEventListener("keydown", (event) => {
    if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    KEYS[event.key]();
  });
  document.addEventListener("click", (event) => {
    const tool = event.target.closest("[data-tool]"), link = event.target.closest("a[data-choose]");
    if (tool) return TOOLS[tool.dataset.tool]();
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    choose(link.href.baseVal ?? link.href);
  });
}
