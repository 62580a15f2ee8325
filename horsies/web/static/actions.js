// Actions: ask for confirmation, send the request with a header that no form can send, and show the outcome.

import { counted, number } from "./units.js";

const base = document.documentElement.dataset.base;
const tasks = (count) => counted(count, "task");

export async function post(path, body) {
  const answer = await fetch(base + path, {
    method: "POST",
    headers: { "X-Horsies-Intent": "action", "Content-Type": "application/json" },
    body: typeof body === "string" ? body : JSON.stringify(body ?? {}),
  });
  const reply = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error([reply.error?.message ?? `The request failed (${answer.status}).`, reply.error?.help].filter(Boolean).join(" "));
  return reply;
}

export function toast(text, style = "") {
  const shown = document.createElement("p");
  shown.className = style;
  shown.textContent = text;
  document.getElementById("toast").append(shown);
  setTimeout(() => shown.remove(), 6000);
}

// Ask for confirmation, with a text to edit if one is given. Returns null if declined, else the edited text or true.
function ask(question, { confirm, decline = "Go back", danger = false, text }) {
  const dialog = document.getElementById("ask");
  const form = document.createElement("form"), prompt = document.createElement("p");
  form.method = "dialog";
  prompt.textContent = question;
  form.append(prompt);
  const edited = document.createElement("textarea");
  if (text !== undefined) {
    edited.value = text;
    edited.rows = Math.min(20, text.split("\n").length + 2);
    edited.spellcheck = false;
    edited.setAttribute("aria-label", "Arguments as JSON");
    form.append(edited);
  }
  const row = document.createElement("div");
  row.className = "acts";
  for (const [value, name, style] of [["no", decline, ""], ["yes", confirm, danger ? "danger" : "primary"]]) {
    const button = document.createElement("button");
    button.className = `act ${style}`;
    button.value = value;
    button.textContent = name;
    row.append(button);
  }
  form.append(row);
  dialog.replaceChildren(form);
  dialog.returnValue = "no";
  dialog.showModal();
  (text === undefined ? row.lastChild : edited).focus();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes" ? edited.value || true : null), { once: true }));
}

async function carryOut(work, refresh) {
  try {
    toast(await work());
  } catch (error) {
    toast(error.message, "bad");
  }
  refresh();
}

async function act(button, refresh) {
  const danger = button.classList.contains("danger");
  const answers = { confirm: button.dataset.confirm ?? button.textContent, decline: danger ? "Keep it" : "Go back", danger };
  if (!(await ask(button.dataset.question, answers))) return;
  await carryOut(async () => {
    await post(button.dataset.act, JSON.parse(button.dataset.body ?? "{}"));
    return `${button.textContent}: done.`;
  }, refresh);
}

const picked = () => [...document.querySelectorAll(".pick:checked")].map((box) => box.value);

function count() {
  const ids = picked(), bulk = document.getElementById("bulk");
  if (!bulk) return;
  const all = bulk.dataset.filterable === "yes" ? "None selected: actions apply to all tasks that match the filters" : "None selected";
  document.getElementById("chosen").textContent = ids.length ? `${tasks(ids.length)} selected` : all;
  for (const button of bulk.querySelectorAll("[data-bulk]")) button.disabled = !ids.length && bulk.dataset.filterable !== "yes";
}

async function bulk(button, refresh) {
  const path = `/api/tasks/${button.dataset.bulk}`, ids = picked();
  const which = ids.length ? { ids } : { filter: JSON.parse(document.getElementById("bulk").dataset.filter) };
  let found;
  try {
    found = (await post(path, { ...which, dry_run: true })).found;
  } catch (error) {
    return toast(error.message, "bad");
  }
  if (!found) return toast(`${button.textContent}: not possible for any of these tasks.`, "bad");
  const noun = found === 1 ? "task" : "tasks", decline = { retry: "Go back" }[button.dataset.bulk] ?? (found === 1 ? "Keep it" : "Keep them");
  if (!(await ask(`${button.textContent} ${tasks(found)}?`, { confirm: `${button.textContent} ${noun}`, decline, danger: true }))) return;
  await carryOut(async () => {
    const reply = await post(path, which);
    for (const box of document.querySelectorAll(".pick:checked")) box.checked = false;
    return `${button.textContent}: ${tasks(reply.done)} of ${number(reply.found)}.`;
  }, refresh);
}

async function showAll(link) {
  const answer = await fetch(link.href);
  const shown = document.querySelector(`pre[data-part="${link.dataset.whole}"]`);
  shown.textContent = await answer.text();
  shown.dataset.whole = "shown";
  link.remove();
}

async function logOut() {
  try {
    await post("/logout");
    location.assign(`${base}/login`);
  } catch (error) {
    toast(error.message, "bad");
  }
}

export function actions(refresh) {
  document.getElementById("logout")?.addEventListener("click", logOut);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act], [data-bulk], a[data-whole]");
    if (!button) return;
    event.preventDefault();
    if (button.dataset.act) act(button, refresh);
    else if (button.dataset.bulk) bulk(button, refresh);
    else showAll(button);
  });
  document.addEventListener("change", (event) => {
    if (event.target.id === "all") for (const box of document.querySelectorAll(".pick")) box.checked = event.target.checked;
    if (event.target.matches(".pick, #all")) count();
  });
  document.addEventListener("fresh", count);
  count();
}
