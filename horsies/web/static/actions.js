// Actions: ask for confirmation, send the request with a header that no form can send, and show the outcome.

const base = document.documentElement.dataset.base;

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

// Show a message for a while. With `undo`, it has a button that takes the action back, and stays longer.
export function toast(text, style = "", undo = null) {
  const shown = document.createElement("p");
  shown.className = style;
  shown.textContent = text;
  if (undo) {
    const button = document.createElement("button");
    button.className = "undo";
    button.textContent = "Undo";
    button.addEventListener("click", () => {
      shown.remove();
      undo();
    });
    shown.append(" ", button);
  }
  document.getElementById("toast").append(shown);
  setTimeout(() => shown.remove(), undo ? 15000 : 6000);
}

// Ask for confirmation, with facts as pairs of a name and a value, and with a text to edit if one is given. The button that
// changes nothing has the focus. Returns null if declined, else the edited text or true.
export function ask(question, { confirm, decline = "Go back", danger = false, text, facts = [], hint }) {
  const dialog = document.getElementById("ask");
  const form = document.createElement("form"), prompt = document.createElement("p");
  form.method = "dialog";
  prompt.textContent = question;
  prompt.className = "question";
  prompt.id = "ask-question";
  dialog.setAttribute("aria-labelledby", prompt.id);
  form.append(prompt);
  if (facts.length) {
    const list = document.createElement("dl");
    list.className = "asked";
    for (const [name, value] of facts) {
      const term = document.createElement("dt"), about = document.createElement("dd");
      term.textContent = name;
      about.textContent = value;
      list.append(term, about);
    }
    form.append(list);
  }
  if (hint) {
    const about = document.createElement("p");
    about.className = "hint";
    about.textContent = hint;
    form.append(about);
  }
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
  (text === undefined ? row.firstChild : edited).focus();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes" ? edited.value || true : null), { once: true }));
}

export async function carryOut(work, refresh, undo = null) {
  try {
    const text = await work();
    toast(text, "", undo && (() => carryOut(undo, refresh)));
  } catch (error) {
    toast(error.message, "bad");
  }
  refresh({ release: true });
}

async function act(button, refresh) {
  // An update of the page may make another button of this one meanwhile.
  const { act: path, undo: back } = button.dataset, body = JSON.parse(button.dataset.body ?? "{}"), name = button.textContent;
  const danger = button.classList.contains("danger");
  const answers = { confirm: button.dataset.confirm ?? button.textContent, decline: danger ? "Keep it" : "Go back", danger };
  if (!(await ask(button.dataset.question, answers))) return;
  const undo = back && (async () => {
    await post(back, body);
    return `${name}: undone.`;
  });
  await carryOut(async () => {
    await post(path, body);
    return `${name}: done.`;
  }, refresh, undo);
}

// A built-in error code is stored as an object, and shown as text: see with_plain_codes() in horsies/codec/results.py.
const BUILTIN_CODE = /("error_code"\s*:\s*)\{\s*"__builtin_task_code__"\s*:\s*("(?:[^"\\]|\\.)*")\s*\}/g;

async function showAll(link) {
  const answer = await fetch(link.href);
  const shown = document.querySelector(`pre[data-part="${link.dataset.whole}"]`);
  const text = await answer.text();
  shown.textContent = link.dataset.whole === "result" ? text.replace(BUILTIN_CODE, "$1$2") : text;
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
    const button = event.target.closest("[data-act], a[data-whole]");
    if (!button) return;
    event.preventDefault();
    if (button.dataset.act) act(button, refresh);
    else showAll(button);
  });
}
