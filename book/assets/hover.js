// A link to a term, a theorem, an equation or a work shows what it leads to: under the mouse, with the keyboard's focus,
// and at a finger's first tap.  The texts are templates in the page, which tools/sphinx_fedcore.py puts there.
"use strict";
{
  const texts = new Map([...document.querySelectorAll("template[data-for]")].map((t) => [t.dataset.for, t]));
  let link = null, tip = null, tapped = null, inside = false, timer = 0;

  const found = (event) => {
    const a = event.target.closest?.("a.reference");
    return a && texts.has(a.getAttribute("href")) ? a : null;
  };
  const soon = (action) => {
    clearTimeout(timer);
    timer = setTimeout(action, 150); // time to move the mouse from the link to the text
  };
  const hide = () => {
    clearTimeout(timer);
    link?.removeAttribute("aria-describedby");
    tip?.remove();
    link = tip = null;
    inside = false;
  };
  const place = () => {
    const box = link.getBoundingClientRect(), space = tip.offsetHeight + 8;
    const below = box.bottom + space < innerHeight || box.top < space;
    const right = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(link.getClientRects()[0].left, right))}px`;
    tip.style.top = `${below ? box.bottom + 4 : box.top - tip.offsetHeight - 4}px`;
  };
  const show = async (a) => {
    clearTimeout(timer);
    if (a === link) return;
    hide();
    link = a;
    link.removeAttribute("title"); // the browser's own hint
    const mine = (tip = document.createElement("div"));
    tip.id = tip.className = "fc-tip";
    tip.setAttribute("role", "tooltip");
    tip.append(texts.get(a.getAttribute("href")).content.cloneNode(true));
    link.closest("article, body").append(tip);
    link.setAttribute("aria-describedby", tip.id);
    place();
    if (!tip.querySelector(".math")) return;
    await window.MathJax?.startup?.promise;
    await window.MathJax?.typesetPromise?.([mine]);
    if (tip === mine) place();
  };

  addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse") return;
    const a = found(event);
    if (a) soon(() => show(a));
    else if (tip?.contains(event.target)) clearTimeout(timer);
    else if (!link?.matches(":focus-visible")) soon(hide);
  });
  addEventListener("focusin", (event) => {
    const a = found(event);
    if (a) show(a);
    else if (!tip?.contains(event.target)) hide();
  });
  addEventListener("focusout", () => inside || soon(hide)); // a click into the text takes the focus from the link
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("pointerdown", (event) => {
    if ((inside = Boolean(tip?.contains(event.target)))) return;
    const a = found(event);
    tapped = event.pointerType !== "mouse" && a !== link ? a : null;
    if (a !== link) hide();
  });
  addEventListener("click", (event) => {
    if (tip?.contains(event.target)) return;
    if (tapped && tapped === found(event)) {
      event.preventDefault(); // a second tap follows the link
      show(tapped);
    } else hide();
  });
  addEventListener("scroll", () => tip && place(), { passive: true });
}
