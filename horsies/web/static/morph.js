// Make one DOM tree equal to another with few changes, so that focus, selection and scroll positions stay.
// The viewer's own changes stay as well: ticked boxes, opened details, text being typed. A script owns the content of
// a `data-script`, and the attributes that a `data-own` names.

export function morph(old, fresh) {
  const kept = new Map();
  for (const child of old.children) if (child.dataset?.row) kept.set(child.dataset.row, child);
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const known = wanted.dataset?.row && kept.get(wanted.dataset.row);
    const match = known ?? (at && alike(at, wanted) ? at : null);
    if (!match) {
      old.insertBefore(wanted, at);
      continue;
    }
    if (match !== at) old.insertBefore(match, at);
    else at = at.nextSibling;
    update(match, wanted);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function alike(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && old.dataset?.row === fresh.dataset?.row;
}

function update(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value && !isViewersOwn(old, name)) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !isViewersOwn(old, name)) old.removeAttribute(name);
  if (old.dataset.whole !== "shown" && old.dataset.script === undefined) morph(old, fresh);
}

function isViewersOwn(element, name) {
  if (element.dataset.script !== undefined && !name.startsWith("data-")) return true;
  return (name === "open" && element.nodeName === "DETAILS") || name === "data-mine" || name === "data-whole" || name === "data-own" || element.dataset.own?.split(" ").includes(name) || (name === "class" && element.dataset.mine);
}
