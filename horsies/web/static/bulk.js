// Actions on many tasks: those that are ticked, or all that match the filters of the list. Only what is possible is offered.
import { ask, carryOut, post, toast } from "./actions.js";
import { counted, number } from "./units.js";

const base = document.documentElement.dataset.base;
const LIVE = ["PENDING", "CLAIMED", "RUNNING"];
const ACTIONS = {
  retry: { label: "Retry", doing: "Retrying", done: "wait again", fits: (row) => row.dataset.status === "FAILED" && !("workflow" in row.dataset), decline: "Go back" },
  cancel: { label: "Cancel", doing: "Cancelling", done: "cancelled", fits: (row) => LIVE.includes(row.dataset.status), decline: "Keep them", danger: true, hint: "Running tasks are asked to stop. Waiting ones end at once; an undo sends them again." },
  delete: { label: "Delete", doing: "Deleting", done: "deleted", fits: (row) => !LIVE.includes(row.dataset.status) && !("workflow" in row.dataset), decline: "Keep them", danger: true, hint: "Their records, attempts and log lines are removed. This cannot be undone." },
};
// The counts of all tasks that match, once the viewer has selected them all.
let matching = null;

const tasks = (count) => counted(count, "task");
const bar = () => document.getElementById("bulk");
const ticked = () => [...document.querySelectorAll(".pick:checked")].map((box) => box.closest("tr"));
const filter = () => Object.fromEntries(Object.entries(JSON.parse(bar().dataset.filter)).filter(([, value]) => value));

function button(label, style, action) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = `act ${style}`;
  made.textContent = label;
  made.addEventListener("click", action);
  return made;
}

function show(refresh) {
  if (!bar()) return;
  const rows = ticked();
  if (!rows.length) matching = null;
  bar().hidden = !rows.length;
  const all = document.getElementById("all"), boxes = document.querySelectorAll(".pick");
  all.checked = boxes.length > 0 && rows.length === boxes.length;
  all.indeterminate = rows.length > 0 && rows.length < boxes.length;
  if (!rows.length) return bar().replaceChildren();
  const text = document.createElement("span");
  text.id = "chosen";
  text.setAttribute("role", "status");
  text.textContent = matching ? `All ${tasks(matching.total)} that match are selected` : `${tasks(rows.length)} selected`;
  const parts = [text, button("Clear", "quiet-act", clear)];
  if (!all.checked) parts.push(button("Select this page", "quiet-act", tickAll));
  if (!matching && all.checked && bar().dataset.filterable === "yes" && bar().dataset.more === "yes") parts.push(button("Select all that match…", "quiet-act", () => selectMatching(refresh)));
  const gap = document.createElement("i");
  parts.push(gap);
  for (const [name, { label, fits, danger }] of Object.entries(ACTIONS)) {
    const count = matching ? matching[name] : rows.filter(fits).length;
    if (!count) continue;
    const made = button(`${label} ${number(count)}`, danger ? "danger" : "primary", () => act(name, count, refresh));
    made.dataset.bulk = name;
    parts.push(made);
  }
  if (parts.at(-1) === gap) {
    const none = document.createElement("span");
    none.className = "hint";
    none.textContent = "These tasks belong to workflows: act on the workflow.";
    parts.push(none);
  }
  bar().replaceChildren(...parts);
  if (!matching && all.checked) label(refresh);

  function tickAll() {
    for (const box of boxes) box.checked = true;
    show(refresh);
  }

  function clear() {
    for (const box of document.querySelectorAll(".pick:checked")) box.checked = false;
    show(refresh);
  }
}

// Put the number of all matching tasks on the button that selects them.
async function label(refresh) {
  const made = [...bar().querySelectorAll("button")].find((each) => each.textContent === "Select all that match…");
  if (!made) return;
  try {
    const counts = await count();
    made.textContent = `Select all ${number(counts.total)} matching`;
  } catch (error) {
    made.title = error.message;
  }
}

async function count() {
  const answer = await fetch(`${base}/api/tasks/count?${new URLSearchParams(filter())}`);
  const reply = await answer.json();
  if (!answer.ok) throw new Error([reply.error?.message, reply.error?.help].filter(Boolean).join(" "));
  return reply;
}

async function selectMatching(refresh) {
  try {
    matching = await count();
  } catch (error) {
    return toast(error.message, "bad");
  }
  show(refresh);
}

// The filter in words, for the dialog.
function facts() {
  const labels = JSON.parse(bar().dataset.labels);
  return Object.entries(filter()).map(([name, value]) => [labels[name] ?? name, name === "status" ? value.toLowerCase() : value]);
}

async function act(name, count, refresh) {
  const { label, doing, done, fits, decline, danger, hint } = ACTIONS[name], rows = ticked().filter(fits);
  const which = matching ? { filter: filter() } : { ids: rows.map((row) => row.dataset.row) };
  const noun = count === 1 ? "task" : "tasks", confirm = `${label} ${noun}`;
  const about = matching ? facts() : [["selected", rows.length > 3 ? `${rows.slice(0, 3).map(nameOf).join(", ")} and ${number(rows.length - 3)} more` : rows.map(nameOf).join(", ")]];
  const asked = { confirm, decline: count === 1 && decline === "Keep them" ? "Keep it" : decline, danger, facts: about, hint };
  if (!(await ask(`${label} ${tasks(count)}${matching ? " that match" : ""}?`, asked))) return;
  let undo = null;
  await carryOut(async () => {
    const reply = await follow(`/api/tasks/${name}`, which, `${doing} ${tasks(count)}`);
    for (const box of document.querySelectorAll(".pick:checked")) box.checked = false;
    matching = null;
    show(refresh);
    undo = name === "cancel" && reply.done ? { ...which, cancelled_from: reply.from, cancelled_until: reply.until } : null;
    return `${tasks(reply.done)} of ${number(reply.found)} ${done}${reply.stopped ? "; stopped" : ""}.`;
  }, refresh, name === "cancel" ? async () => {
    const reply = await post("/api/tasks/restore", undo);
    return `${tasks(reply.done)} ${reply.done === 1 ? "was" : "were"} sent again.`;
  } : null);
}

const nameOf = (row) => row.querySelector(".name").textContent.trim();

// Send an action, and show its progress if it takes longer than a moment. Return the last report.
async function follow(path, body, title) {
  const leave = new AbortController(), dialog = document.getElementById("ask");
  const answer = await fetch(base + path, {
    method: "POST",
    headers: { "X-Horsies-Intent": "action", "Content-Type": "application/json", Accept: "application/x-ndjson" },
    body: JSON.stringify(body),
    signal: leave.signal,
  });
  if (!answer.ok) {
    const reply = await answer.json().catch(() => ({}));
    throw new Error([reply.error?.message ?? `The request failed (${answer.status}).`, reply.error?.help].filter(Boolean).join(" "));
  }
  const shown = progress(dialog, title, () => leave.abort());
  let last = { done: 0, found: 0 }, text = "";
  try {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      text += part.value;
      const lines = text.split("\n");
      text = lines.pop();
      for (const line of lines) {
        const report = JSON.parse(line);
        if (report.error) throw new Error([report.error.message, report.error.help].filter(Boolean).join(" "));
        last = report;
        shown.update(last);
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    last = { ...last, stopped: true };
  } finally {
    shown.close();
  }
  return last;
}

function progress(dialog, title, stop) {
  const form = document.createElement("form"), head = document.createElement("p"), bar = document.createElement("progress"), told = document.createElement("p");
  form.method = "dialog";
  head.className = "question";
  head.id = "ask-question";
  head.textContent = title;
  told.className = "hint";
  const row = document.createElement("div");
  row.className = "acts";
  row.append(button("Stop here", "", stop));
  form.append(head, bar, told, row);
  const timer = setTimeout(() => {
    dialog.replaceChildren(form);
    dialog.showModal();
  }, 400);
  dialog.addEventListener("cancel", stop, { once: true });
  return {
    update({ done, found }) {
      bar.max = found || 1;
      bar.value = done;
      told.textContent = `${number(done)} of ${tasks(found)} so far. What is done stays done if you stop.`;
    },
    close() {
      clearTimeout(timer);
      dialog.removeEventListener("cancel", stop);
      if (form.isConnected) dialog.close();
    },
  };
}

// Retry all tasks of a group of failures.
async function retryGroup(pressed, refresh) {
  const which = JSON.parse(pressed.dataset.group), about = [["error", which.code ?? "no code"], ["task", which.name], ["message", pressed.dataset.message || "none"]];
  const filter = Object.fromEntries(Object.entries(which).filter(([, value]) => value));
  let found = 0;
  try {
    found = (await post("/api/tasks/retry", { filter, dry_run: true })).found;
  } catch (error) {
    return toast(error.message, "bad");
  }
  if (!found) return toast("None of these tasks can be retried any more.", "bad");
  if (!(await ask(`Retry ${tasks(found)} of this group?`, { confirm: found === 1 ? "Retry task" : "Retry tasks", facts: about }))) return;
  await carryOut(async () => {
    const reply = await follow("/api/tasks/retry", { filter }, `Retrying ${tasks(found)}`);
    return `${tasks(reply.done)} of ${number(reply.found)} wait again${reply.stopped ? "; stopped" : ""}.`;
  }, refresh);
}

export function bulk(refresh) {
  let last = null;
  document.addEventListener("change", (event) => {
    if (event.target.id === "all") for (const box of document.querySelectorAll(".pick")) box.checked = event.target.checked;
    if (event.target.matches(".pick, #all")) {
      matching = null;
      show(refresh);
    }
  });
  document.addEventListener("click", (event) => {
    const pressed = event.target.closest("[data-group]");
    if (pressed) retryGroup(pressed, refresh);
  });
  // A click with Shift ticks everything up to the box that was ticked before.
  document.addEventListener("click", (event) => {
    const box = event.target.closest(".pick");
    if (!box) return;
    const boxes = [...document.querySelectorAll(".pick")], here = boxes.indexOf(box), before = boxes.indexOf(last);
    if (event.shiftKey && before >= 0) for (const each of boxes.slice(Math.min(here, before), Math.max(here, before) + 1)) each.checked = box.checked;
    last = box;
  });
  document.addEventListener("fresh", () => show(refresh));
  show(refresh);
}
