// A quiz answers at once: what is wrong may be tried again, what is right is explained.
"use strict";
document.addEventListener("change", (event) => {
  const question = event.target.closest(".fc-quiz fieldset");
  if (!question) return;
  const right = "right" in event.target.dataset, said = question.querySelector("[role=status]");
  question.dataset.answer = right ? "right" : "wrong";
  said.replaceChildren(right ? "Right. " : "Not so. Try another answer.");
  if (right) said.append(question.querySelector("template").content.cloneNode(true));
  if (said.querySelector(".math")) window.MathJax?.typesetPromise?.([said]);
});
